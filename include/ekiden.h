/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Chooses a policy of Ekiden for threads, from the program that they are in. Nothing has to be linked; copy this file, or add its
 * directory to the include path. For Rust there is the crate ekiden-user.
 *
 *	if (ekiden_choose_named(0, "wfq", 1))
 *		perror("wfq");		this thread goes on as before
 *
 * A choice takes effect when the thread next waits for a CPU. If the policy ends, the thread goes on with the one that everybody gets.
 * Every function returns -1 and sets errno if it fails; then the thread is scheduled as before:
 *
 *	ENOENT	Ekiden is not loaded: `ekiden run` does that
 *	ENODEV	no policy runs
 *	ENXIO	other policies run, but not this one
 *	ESRCH	there is no such thread, or no policy has it (real-time threads, and those without room)
 *	EPERM	the thread is somebody else's, and the caller lacks CAP_SYS_NICE
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
#include <sys/types.h>
#include <unistd.h>

#ifndef EKIDEN_DEVICE
#define EKIDEN_DEVICE "/dev/ekiden"
#endif

/* As in kernel/include/ekiden_control.h. */
struct ekiden_choice {
	int tid;
	unsigned int seat;	/* counted from 1; 0 for the policy that everybody gets */
	unsigned int flags;	/* 1: children inherit it */
	unsigned int params_len;
	uint64_t params;	/* text */
	uint64_t error;		/* room for the reason of a refusal */
	unsigned int error_len;
	unsigned int reserved;
};

#define EKIDEN_CHOOSE _IOW('E', 7, struct ekiden_choice)

/* More than there is to say: the status is of one moment only if it is read at once. */
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
 * Finds a policy in the status, by its name, or by its number if there is no name. A policy is there as "policy":"NAME","seat":SEAT,
 * and then "instance":NUMBER before any text that others have written; in such texts every quote follows a backslash.
 */
static inline int ekiden_scan_(const char *text, const char *name, int number, struct ekiden_choice *choice)
{
	static const char begin[] = "\"policy\":\"", seat[] = "\",\"seat\":", instance[] = ",\"instance\":";
	const char *seat_at, *instance_at;

	errno = ENODEV;
	while ((text = strstr(text, begin))) {
		text += sizeof(begin) - 1;
		seat_at = strstr(text, seat);
		instance_at = strstr(text, instance);
		if (!seat_at || !instance_at)
			break;
		choice->seat = 1 + (unsigned int)strtoul(seat_at + sizeof(seat) - 1, NULL, 10);
		choice->tid = (int)strtol(instance_at + sizeof(instance) - 1, NULL, 10);
		if (name ? strlen(name) == (size_t)(seat_at - text) && !strncmp(name, text, (size_t)(seat_at - text))
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
		result = ekiden_set_class_(tid, choice.seat != 0);
	/* Whoever leaves for the kernel's own scheduler has no policy of Ekiden's. */
	if (!result && (all[0] == '1' || choice.seat)) {
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
 * Chooses the policy with this number for a thread (0: the calling one); number 0 is the policy that everybody gets. Children that it
 * has from now on get the same if inherit is not 0, and the one that everybody gets otherwise. Returns 0.
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
 * commas. What is not in it is as by default. With EINVAL, the reason is in `reason`, a text of less than `reason_len` bytes.
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

/* The same with a name only. */
static inline int ekiden_choose_named(pid_t tid, const char *name, int inherit)
{
	return ekiden_choose_with(tid, name, inherit, "", NULL, 0);
}

#endif
