/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Chooses a policy of Ekiden for threads, from the program that they are in, and talks to it. Nothing has to be linked; copy this file, or add its
 * directory to the include path. For Rust there is the crate ekiden-user.
 *
 *	if (ekiden_choose_named(0, "wfq", 1))
 *		perror("wfq");		this thread is scheduled as before
 *
 * A choice takes effect when the thread next waits for a CPU. If the policy ends, the thread has the default one.
 * Every function returns -1 and sets errno if it fails; then the thread is scheduled as before:
 *
 *	ENOENT	Ekiden is not loaded: `ekiden run` does that
 *	ENODEV	no policy runs
 *	ENXIO	other policies run, but not this one
 *	ESRCH	there is no such thread, or no policy has it (real-time threads, and those without room)
 *	EPERM	the thread is another user's, and the caller lacks CAP_SYS_NICE
 *	EACCES	the policy is not open to every user, or root has chosen for the thread
 *	EINVAL	the policy refuses what is to be set for the thread (ekiden_choose_with)
 */
#ifndef EKIDEN_H
#define EKIDEN_H

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#ifndef EKIDEN_DEVICE
#define EKIDEN_DEVICE "/dev/ekiden"
#endif

/* As in hosts/kernel/include/ekiden_control.h. */
struct ekiden_choice {
	int tid;
	unsigned int slot;  /* counted from 1; 0 for the default policy */
	unsigned int flags; /* 1: children inherit it */
	unsigned int params_len;
	uint64_t params; /* text */
	uint64_t error;	 /* room for the reason of a refusal */
	unsigned int error_len;
	unsigned int reserved;
};

#define EKIDEN_CHOOSE _IOW('E', 7, struct ekiden_choice)

/* More than ekiden.ko has to say, so that one read is enough. */
#define EKIDEN_STATUS_LEN 65536

static inline struct ekiden_choice ekiden_nothing_(void)
{
	struct ekiden_choice choice;

	memset(&choice, 0, sizeof(choice));
	return choice;
}

static inline int ekiden_open_(const char *path)
{
#ifdef O_CLOEXEC
	return open(path, O_RDONLY | O_CLOEXEC);
#else
	return open(path, O_RDONLY);
#endif
}

/* Reads what there is, up to len - 1 bytes, and ends it with a zero. */
static inline int ekiden_read_(const char *path, char *text, size_t len)
{
	int fd = ekiden_open_(path), error;
	ssize_t got;

	if (fd < 0)
		return -1;
	got = read(fd, text, len - 1);
	error = errno;
	close(fd);
	errno = error;
	text[got < 0 ? 0 : got] = 0;
	return got < 0 ? -1 : 0;
}

/*
 * Finds a policy in the status, by its name, or by its number if there is no name. A policy is there as "policy":"NAME","slot":SLOT,
 * and then "instance":NUMBER before any text that others have written; in such texts every quote follows a backslash.
 */
static inline int ekiden_scan_(const char *text, const char *name, int number, struct ekiden_choice *choice)
{
	static const char begin[] = "\"policy\":\"", slot[] = "\",\"slot\":", instance[] = ",\"instance\":";
	const char *slot_at, *instance_at;

	errno = ENODEV;
	while ((text = strstr(text, begin))) {
		text += sizeof(begin) - 1;
		slot_at = strstr(text, slot);
		instance_at = strstr(text, instance);
		if (!slot_at || !instance_at)
			break;
		choice->slot = 1 + (unsigned int)strtoul(slot_at + sizeof(slot) - 1, NULL, 10);
		choice->tid = (int)strtol(instance_at + sizeof(instance) - 1, NULL, 10);
		if (name ? strlen(name) == (size_t)(slot_at - text) && !strncmp(name, text, (size_t)(slot_at - text))
			 : choice->tid == number)
			return choice->tid;
		errno = ENXIO;
	}
	return -1;
}

static inline int ekiden_find_(const char *name, int number, struct ekiden_choice *choice)
{
	char *text = (char *)malloc(EKIDEN_STATUS_LEN);
	int found = -1, error;

	if (!text)
		return -1;
	if (!ekiden_read_(EKIDEN_DEVICE, text, EKIDEN_STATUS_LEN))
		found = ekiden_scan_(text, name, number, choice);
	error = errno;
	free(text);
	errno = error;
	return found;
}

/* Where not all tasks are Ekiden's, those that are have to be in class SCHED_EXT. */
static inline int ekiden_set_class_(pid_t tid, int is_ours)
{
	struct sched_param parameters;

	memset(&parameters, 0, sizeof(parameters));
	return sched_setscheduler(tid, is_ours ? 7 /* SCHED_EXT */ : SCHED_OTHER, &parameters);
}

static inline int ekiden_give_(pid_t tid, struct ekiden_choice choice, int inherit)
{
	char all[8] = "";
	int fd = ekiden_open_(EKIDEN_DEVICE), error, result = 0;

	if (fd < 0)
		return -1;
	if (ekiden_read_("/sys/kernel/sched_ext/switch_all", all, sizeof(all)) || all[0] != '1')
		result = ekiden_set_class_(tid, choice.slot != 0);
	/* A thread that leaves for the kernel's own scheduler has no policy of Ekiden's. */
	if (!result && (all[0] == '1' || choice.slot)) {
		choice.tid = (int)tid;
		choice.flags = inherit ? 1 : 0;
		result = ioctl(fd, EKIDEN_CHOOSE, &choice);
	}
	error = errno;
	close(fd);
	errno = error;
	return result < 0 ? -1 : 0;
}

/* The number of the policy that runs by this name, above 0, as `ekiden status` shows it. Numbers are not used again. */
static inline int ekiden_number(const char *name)
{
	struct ekiden_choice choice;

	return ekiden_find_(name, 0, &choice);
}

/*
 * Chooses the policy with this number for a thread (0: the calling one); number 0 is the default policy. Children that it
 * has from now on get the same if inherit is not 0, and the default one otherwise. Returns 0.
 */
static inline int ekiden_choose(pid_t tid, int number, int inherit)
{
	struct ekiden_choice choice = ekiden_nothing_();

	if (number && ekiden_find_(NULL, number, &choice) < 0)
		return -1;
	return ekiden_give_(tid, choice, inherit);
}

/*
 * The same with a name, and with what is set for the thread, of what the policy has for a task: "name=number", separated by blanks or
 * commas. Parameters that are not in it have their defaults. With EINVAL, the reason is in `reason`, a text of less than `reason_len` bytes.
 */
static inline int ekiden_choose_with(pid_t tid, const char *name, int inherit, const char *params, char *reason, size_t reason_len)
{
	struct ekiden_choice choice = ekiden_nothing_();

	choice.params = (uint64_t)(uintptr_t)params;
	choice.params_len = (unsigned int)strlen(params);
	if (reason_len) {
		memset(reason, 0, reason_len);
		choice.error = (uint64_t)(uintptr_t)reason;
		choice.error_len = (unsigned int)reason_len - 1;
	}
	return ekiden_find_(name, 0, &choice) < 0 ? -1 : ekiden_give_(tid, choice, inherit);
}

/* Chooses a policy by its name, with no other setting. */
static inline int ekiden_choose_named(pid_t tid, const char *name, int inherit)
{
	return ekiden_choose_with(tid, name, inherit, "", NULL, 0);
}

/*
 * Queues of hints: the program tells its policy something without a system call, and hears from it. The types are the policy's: `ekiden
 * hints header POLICY` writes a header with its structures, and with what says which they are.
 *
 *	struct ekiden_queue queue;
 *	locality_hint hint = { LOCALITY_JOIN, gettid(), 1 };
 *
 *	if (ekiden_queue_open(&queue, "locality", locality_types(), 64, 64, reason, sizeof(reason)))
 *		fprintf(stderr, "%s\n", reason);
 *	ekiden_queue_send(&queue, &hint);	the policy hears it when this thread next sleeps, or at the tick
 *	ekiden_queue_ring(&queue);		or now
 *
 * A queue is of the process that opens it, one thread at a time. A child has neither its memory nor a right to ring. It closes with
 * ekiden_queue_close and with the process. Functions return 0, or -1 with errno as above, and:
 *
 *	EPROTO		the policy has other types; EOPNOTSUPP: it has no queues; EDQUOT, EUSERS: there are too many
 *	EAGAIN		the ring is full, which is counted and never waited for; or there is no notice
 *	EPIPE		the policy has ended
 *	ESTALE		a version of the policy with other types has taken over: open anew
 */
struct ekiden_queue {
	int fd; /* for poll and epoll: readable when there is a notice */
	volatile uint64_t *words;
	size_t bytes;
	uint64_t head, tail;
	unsigned int up_bytes, down_bytes, up_records, down_records;
	unsigned int number; /* as the policy knows it */
};

/* What the policy's types are, as the generated header has it. */
struct ekiden_types {
	uint64_t up, down; /* fingerprints of hints and notices */
	unsigned int up_bytes, down_bytes;
};

/* As in hosts/kernel/include/ekiden_control.h. */
struct ekiden_open_queue {
	uint64_t up_fingerprint, down_fingerprint;
	unsigned int up_bytes, down_bytes, up_records, down_records;
	unsigned int slot, queue;
	uint64_t bytes;
	uint64_t error;
	unsigned int error_len, flags;
};

#define EKIDEN_OPEN_QUEUE _IOWR('E', 10, struct ekiden_open_queue)
#define EKIDEN_RING_QUEUE _IO('E', 11)

/* Words of the header, as in framework/hints/src/layout.rs. */
#define EKIDEN_AT_STATE_ 2
#define EKIDEN_AT_UP_HEAD_ 16
#define EKIDEN_AT_UP_FULL_ 17
#define EKIDEN_AT_UP_TAIL_ 32
#define EKIDEN_AT_DOWN_HEAD_ 48
#define EKIDEN_AT_DOWN_TAIL_ 64
#define EKIDEN_HEADER_WORDS_ 512

static inline uint64_t ekiden_load_(const volatile uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static inline void ekiden_store_(volatile uint64_t *word, uint64_t value)
{
	__atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static inline void ekiden_queue_close(struct ekiden_queue *queue)
{
	munmap((void *)(uintptr_t)queue->words, queue->bytes);
	close(queue->fd);
	queue->fd = -1;
}

/* Opens a queue to the policy of this name with room for this many hints and notices, powers of two. */
static inline int ekiden_queue_open(struct ekiden_queue *queue, const char *name, struct ekiden_types types, unsigned int hints,
				    unsigned int notices, char *reason, size_t reason_len)
{
	struct ekiden_choice choice = ekiden_nothing_();
	struct ekiden_open_queue request;
	void *memory;
	int device, error;

	memset(&request, 0, sizeof(request));
	if (reason_len) {
		memset(reason, 0, reason_len);
		request.error = (uint64_t)(uintptr_t)reason;
		request.error_len = (unsigned int)reason_len - 1;
	}
	if (ekiden_find_(name, 0, &choice) < 0)
		return -1;
	device = ekiden_open_(EKIDEN_DEVICE);
	if (device < 0)
		return -1;
	request.up_fingerprint = types.up;
	request.down_fingerprint = types.down;
	request.up_bytes = types.up_bytes;
	request.down_bytes = types.down_bytes;
	request.up_records = hints;
	request.down_records = notices;
	request.slot = choice.slot;
	memset(queue, 0, sizeof(*queue));
	queue->fd = ioctl(device, EKIDEN_OPEN_QUEUE, &request);
	error = errno;
	close(device);
	errno = error;
	if (queue->fd < 0)
		return -1;
	memory = mmap(NULL, (size_t)request.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, queue->fd, 0);
	if (memory == MAP_FAILED) {
		error = errno;
		close(queue->fd);
		errno = error;
		return -1;
	}
	queue->words = (volatile uint64_t *)memory;
	queue->bytes = (size_t)request.bytes;
	queue->up_bytes = types.up_bytes;
	queue->down_bytes = types.down_bytes;
	queue->up_records = hints;
	queue->down_records = notices;
	queue->number = request.queue;
	return 0;
}

static inline int ekiden_queue_stands_(const struct ekiden_queue *queue)
{
	uint64_t state = ekiden_load_(&queue->words[EKIDEN_AT_STATE_]);

	if (state == 1)
		return 0;
	errno = state == 3 ? ESTALE : EPIPE;
	return -1;
}

/* Writes a hint, without a system call. */
static inline int ekiden_queue_send(struct ekiden_queue *queue, const void *hint)
{
	size_t words = (queue->up_bytes + 7) / 8, i, left = queue->up_bytes;
	volatile uint64_t *record = queue->words + EKIDEN_HEADER_WORDS_ + (queue->head & (queue->up_records - 1)) * words;
	const char *bytes = (const char *)hint;

	if (ekiden_queue_stands_(queue))
		return -1;
	if (queue->head - ekiden_load_(&queue->words[EKIDEN_AT_UP_TAIL_]) >= queue->up_records) {
		queue->words[EKIDEN_AT_UP_FULL_] = queue->words[EKIDEN_AT_UP_FULL_] + 1;
		errno = EAGAIN;
		return -1;
	}
	for (i = 0; i < words; i++, bytes += 8, left -= 8) {
		uint64_t word = 0;

		memcpy(&word, bytes, left < 8 ? left : 8);
		record[i] = word;
		if (left <= 8)
			break;
	}
	ekiden_store_(&queue->words[EKIDEN_AT_UP_HEAD_], ++queue->head);
	return 0;
}

/* Has the policy look now. */
static inline int ekiden_queue_ring(const struct ekiden_queue *queue)
{
	return ioctl(queue->fd, EKIDEN_RING_QUEUE) < 0 ? -1 : 0;
}

/* Takes the oldest notice, if there is one. Nothing waits: poll the descriptor for that. */
static inline int ekiden_queue_receive(struct ekiden_queue *queue, void *notice)
{
	size_t words = (queue->down_bytes + 7) / 8, i, left = queue->down_bytes;
	volatile uint64_t *record = queue->words + EKIDEN_HEADER_WORDS_ + (size_t)queue->up_records * ((queue->up_bytes + 7) / 8) +
				    (queue->tail & (queue->down_records - 1)) * words;
	uint64_t waiting = ekiden_load_(&queue->words[EKIDEN_AT_DOWN_HEAD_]) - queue->tail;
	char *bytes = (char *)notice;

	if (!waiting || waiting > queue->down_records) {
		if (!ekiden_queue_stands_(queue))
			errno = EAGAIN;
		return -1;
	}
	for (i = 0; i < words; i++, bytes += 8, left -= 8) {
		uint64_t word = record[i];

		memcpy(bytes, &word, left < 8 ? left : 8);
		if (left <= 8)
			break;
	}
	ekiden_store_(&queue->words[EKIDEN_AT_DOWN_TAIL_], ++queue->tail);
	return 0;
}

#endif
