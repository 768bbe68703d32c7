// SPDX-License-Identifier: GPL-2.0-only
/*
 * Queues of hints: memory that a program and its policy share, a descriptor for each, and when the policy hears of
 * what is in it. What is in the memory is framework/hints/src/layout.rs; all that reads or writes it is Rust there, but
 * for looks at one word.
 *
 * A queue is of the process that opens it. Its memory is not the child's after a fork, and by an inherited descriptor
 * nothing can be asked. It closes when the process closes any descriptor of it or ends; what is unmapped only cannot
 * be written to any more.
 */
#include <linux/anon_inodes.h>
#include <linux/cred.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/hash.h>
#include <linux/irq_work.h>
#include <linux/log2.h>
#include <linux/math64.h>
#include <linux/mm.h>
#include <linux/percpu.h>
#include <linux/pid.h>
#include <linux/poll.h>
#include <linux/rculist.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>
#include "host.h"

int watch_events(void);
void watch_events_no_more(void);

/* As in framework/hints/src/layout.rs. */
#define QUEUE_OPEN 1
#define QUEUE_POLICY_GONE 2
#define QUEUE_OTHER_TYPES 3
#define QUEUE_CLOSED 4
#define AT_STATE 2
#define AT_UP_HEAD 16
#define AT_UP_FULL 17
#define AT_REFUSED 33
#define AT_NONSENSE 34
#define AT_DOWN_HEAD 48
#define AT_DOWN_LOST 49
#define AT_DOWN_TAIL 64

/* So much is said in one call of the policy. */
#define HINTS_LEN 4096

struct queue {
	u32 number;
	u32 seat;
	int state;
	bool known;			/* to the policy; under `control` */
	bool summed;			/* its counts are in `past`; likewise */
	unsigned long busy;		/* bit 0: a CPU takes hints out */
	struct pid *owner;		/* referenced: a number may be another process's by now */
	const void *signal;		/* of the owner's threads; only compared */
	kuid_t uid;
	u64 *memory;
	size_t bytes;
	struct ekiden_queue_geometry geometry;
	u64 up_tail;			/* what is in the memory may be anything */
	u64 heard;			/* without what was passed over as nonsense */
	u64 down_head;
	raw_spinlock_t down;		/* several CPUs may say something */
	struct irq_work work;
	wait_queue_head_t wait;
	struct hlist_node of_owner;
	struct rcu_work freeing;
};

/* What queues have counted. What a program writes itself may be anything. */
struct sums {
	u64 hints, refused, nonsense, full, notices, lost;
};

/* Of each policy: how many queues it has had, and what those have counted that are no more. Under `control`. */
static struct past {
	u64 opened;
	struct sums sums;
} past[EKIDEN_SEATS];

/* Where queues are freed that no CPU looks at any more. */
static struct workqueue_struct *frees;

/* All that are open, by number. Changed under `control`, read under RCU. */
static DEFINE_XARRAY_ALLOC1(queues);
static u32 queues_nr;
/* The same by the signal_struct of the owner: one look says that a task has none. */
#define OWNERS_BITS 10
static struct hlist_head owners[1 << OWNERS_BITS];
bool ekiden_any_queue;

/* Where each CPU copies hints to. Not a variable: of those, all modules together have 8 KiB for each CPU. */
static u8 __percpu *hints_room;

static u64 word(const struct queue *queue, size_t at)
{
	return READ_ONCE(queue->memory[at]);
}

static void add_sums(struct sums *sums, const struct queue *queue)
{
	sums->hints += READ_ONCE(queue->heard);
	sums->refused += word(queue, AT_REFUSED);
	sums->nonsense += word(queue, AT_NONSENSE);
	sums->full += word(queue, AT_UP_FULL);
	sums->notices += READ_ONCE(queue->down_head);
	sums->lost += word(queue, AT_DOWN_LOST);
}

/* Under `control`: its policy is there, and has no more to do with it. */
static void sum_up(struct queue *queue)
{
	if (!queue->summed)
		add_sums(&past[queue->seat].sums, queue);
	queue->summed = true;
}

/* ---- the policy hears ---- */

/* Interrupts are off. Whether there may be more. */
static bool take_hints(struct queue *queue)
{
	struct ekiden_event event = {
		.kind = EKIDEN_QUEUE_READY,
		.cpu = smp_processor_id(),
		.flags = queue->seat + 1,
	};
	struct ekiden_outcome outcome = {};
	u8 *room = this_cpu_ptr(hints_room);
	s64 len = ekiden_rs_queue_take(queue->memory, &queue->geometry, &queue->up_tail, room, HINTS_LEN);

	if (len <= 0)
		return false;
	WRITE_ONCE(queue->heard, queue->heard + div_u64(len, queue->geometry.up.bytes));
	event.args[0] = queue->number;
	event.args[1] = len;
	rcu_read_lock();
	deliver(&event, &outcome, room, len);
	/* A number that is negative is no answer: none of the hints was refused. */
	if (outcome.cpu > 0)
		ekiden_rs_queue_refused(queue->memory, &queue->geometry, outcome.cpu);
	if (outcome.timer_ns)
		ekiden_do_arm_timer(event.cpu, outcome.timer_ns);
	carry_out(&outcome);
	rcu_read_unlock();
	return len == HINTS_LEN - HINTS_LEN % queue->geometry.up.bytes;
}

/*
 * An interrupt soon after what it is for, outside of every operation. So much at a time: who writes without end has
 * the rest heard with the next event of its own.
 */
static void queue_interrupt(struct irq_work *work)
{
	struct queue *queue = container_of(work, struct queue, work);
	unsigned long flags;

	local_irq_save(flags);
	/* Another CPU at it sees what is there, or the next event does. The bit comes first: a close waits for it. */
	if (!test_and_set_bit(0, &queue->busy)) {
		if (READ_ONCE(queue->state) == QUEUE_OPEN)
			take_hints(queue);
		clear_bit_unlock(0, &queue->busy);
	}
	local_irq_restore(flags);
	if (wq_has_sleeper(&queue->wait))
		wake_up_all(&queue->wait);
}

/* After each event while any queue is open, with interrupts off: what this task's program has written is due. */
void ekiden_look_at_queues(void)
{
	const void *signal = current->signal;
	struct hlist_head *bucket = &owners[hash_ptr(signal, OWNERS_BITS)];
	struct queue *queue;

	if (likely(!READ_ONCE(bucket->first)))
		return;
	rcu_read_lock();
	hlist_for_each_entry_rcu(queue, bucket, of_owner)
		if (queue->signal == signal && word(queue, AT_UP_HEAD) != READ_ONCE(queue->up_tail))
			irq_work_queue(&queue->work);
	rcu_read_unlock();
}

/* ---- the program hears ---- */

static struct instance *asks(const struct ekiden_host_table *host)
{
	return container_of((struct ekiden_host_table *)host, struct instance, host);
}

/* Called by a policy: 0, or a number of NotTold. */
u32 ekiden_c_notify(const struct ekiden_host_table *host, u32 number, const void *bytes, size_t len)
{
	struct queue *queue;
	unsigned long flags;
	u32 ret = 2;

	rcu_read_lock();
	queue = xa_load(&queues, number);
	if (queue && READ_ONCE(queue->state) == QUEUE_OPEN && running.seats[queue->seat].now == asks(host)) {
		raw_spin_lock_irqsave(&queue->down, flags);
		ret = ekiden_rs_queue_put(queue->memory, &queue->geometry, &queue->down_head, bytes, len);
		raw_spin_unlock_irqrestore(&queue->down, flags);
		/* No task is woken up in a scheduling call. */
		if (!ret && wq_has_sleeper(&queue->wait))
			irq_work_queue(&queue->work);
	}
	rcu_read_unlock();
	return ret;
}

/* Without waiting, in any context: what a policy has, or had, no program is to wait for any more. */
static void end_queues(u32 seat, int state)
{
	struct queue *queue;
	unsigned long number;

	rcu_read_lock();
	xa_for_each(&queues, number, queue) {
		if (queue->seat != seat || cmpxchg(&queue->state, QUEUE_OPEN, state) != QUEUE_OPEN)
			continue;
		WRITE_ONCE(queue->memory[AT_STATE], state);
		irq_work_queue(&queue->work);
	}
	rcu_read_unlock();
}

void queues_lose_policy(u32 seat)
{
	end_queues(seat, QUEUE_POLICY_GONE);
}

/* Under `control`: another policy may come to this place. */
void queues_forget_policy(u32 seat)
{
	queues_lose_policy(seat);
	past[seat] = (struct past) {};
}

/* ---- opening and closing ---- */

static void tell(struct queue *queue, u32 kind)
{
	struct ekiden_event event = { .kind = kind, .flags = queue->seat + 1, .args = { queue->number } };
	struct ekiden_outcome outcome = {};

	if (kind == EKIDEN_QUEUE_OPEN)
		event.args[0] |= (u64)pid_nr(queue->owner) << 32;
	rcu_read_lock();
	preempt_disable();
	event.cpu = smp_processor_id();
	deliver(&event, &outcome, NULL, 0);
	carry_out(&outcome);
	preempt_enable();
	rcu_read_unlock();
}

static bool same_types(const struct ekiden_queue_geometry *one, const struct ekiden_queue_geometry *other)
{
	return one->up.fingerprint == other->up.fingerprint && one->up.bytes == other->up.bytes &&
	       one->down.fingerprint == other->down.fingerprint && one->down.bytes == other->down.bytes;
}

static bool fits(const struct queue *queue)
{
	struct seat *seat = running.nr ? seat_of(queue->seat) : NULL;

	return seat && is_alive(seat) && same_types(&queue->geometry, &seat->now->policy->table->types);
}

/* All CPUs stand still, and another version has the seat now. */
void queues_change_policy(u32 seat, const struct ekiden_queue_geometry *before, const struct ekiden_queue_geometry *now)
{
	if (!same_types(before, now))
		end_queues(seat, QUEUE_OTHER_TYPES);
}

/*
 * Under `control`, after that: a version that has the state of the one before is told which queues are no more, and
 * one that knows nothing which there are.
 */
void queues_meet_policy(u32 seat, bool has_state)
{
	struct queue *queue;
	unsigned long number;

	xa_for_each(&queues, number, queue) {
		int state = READ_ONCE(queue->state);

		if (queue->seat != seat || !queue->known)
			continue;
		if (state == QUEUE_OTHER_TYPES)
			sum_up(queue);
		if (has_state && state == QUEUE_OTHER_TYPES) {
			tell(queue, EKIDEN_QUEUE_CLOSE);
			queue->known = false;
		} else if (!has_state && state == QUEUE_OPEN) {
			tell(queue, EKIDEN_QUEUE_OPEN);
		}
	}
}

static void close_queue(struct queue *queue)
{
	int before = xchg(&queue->state, QUEUE_CLOSED);
	int left = EKIDEN_QUEUE_RECORDS_MAX;

	if (before == QUEUE_CLOSED)
		return;
	WRITE_ONCE(queue->memory[AT_STATE], QUEUE_CLOSED);
	/* A CPU that is at it has its interrupts off, and is soon done. */
	while (test_bit_acquire(0, &queue->busy))
		cpu_relax();
	mutex_lock(&control);
	if (queue->known && before == QUEUE_OPEN && fits(queue)) {
		bool more = queue->geometry.up.bytes > 0;

		/* What it said before it ended still counts. */
		while (more && left > 0) {
			local_irq_disable();
			more = take_hints(queue);
			local_irq_enable();
			left -= HINTS_LEN / queue->geometry.up.bytes;
			cond_resched();
		}
		tell(queue, EKIDEN_QUEUE_CLOSE);
		sum_up(queue);
	}
	queue->known = false;
	mutex_unlock(&control);
	wake_up_all(&queue->wait);
}

static bool is_owner(const struct queue *queue)
{
	return task_tgid(current) == queue->owner;
}

static int queue_flush(struct file *file, fl_owner_t id)
{
	struct queue *queue = file->private_data;

	/* A child that closes what it has inherited closes nothing. */
	if (is_owner(queue))
		close_queue(queue);
	return 0;
}

static void free_queue(struct queue *queue)
{
	vfree(queue->memory);
	put_pid(queue->owner);
	kfree(queue);
}

static void free_later(struct work_struct *work)
{
	struct queue *queue = container_of(to_rcu_work(work), struct queue, freeing);

	irq_work_sync(&queue->work);
	/* Who has it mapped keeps the pages. */
	free_queue(queue);
}

static void remove_queue(struct queue *queue)
{
	close_queue(queue);
	mutex_lock(&control);
	xa_erase(&queues, queue->number);
	hlist_del_rcu(&queue->of_owner);
	WRITE_ONCE(ekiden_any_queue, --queues_nr > 0);
	mutex_unlock(&control);
	watch_events_no_more();
	INIT_RCU_WORK(&queue->freeing, free_later);
	queue_rcu_work(frees, &queue->freeing);
}

static int queue_release(struct inode *inode, struct file *file)
{
	remove_queue(file->private_data);
	return 0;
}

static int queue_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct queue *queue = file->private_data;

	if (!is_owner(queue))
		return -EPERM;
	if (vma->vm_pgoff || vma->vm_end - vma->vm_start != queue->bytes || !(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	vm_flags_set(vma, VM_DONTCOPY | VM_DONTEXPAND);
	return remap_vmalloc_range(vma, queue->memory, 0);
}

static __poll_t queue_poll(struct file *file, struct poll_table_struct *table)
{
	struct queue *queue = file->private_data;
	__poll_t ready = 0;

	poll_wait(file, &queue->wait, table);
	/* What the program says of its tail concerns only itself. */
	if (word(queue, AT_DOWN_TAIL) != READ_ONCE(queue->down_head))
		ready |= EPOLLIN | EPOLLRDNORM;
	if (READ_ONCE(queue->state) != QUEUE_OPEN)
		ready |= EPOLLHUP;
	return ready;
}

static long queue_ioctl(struct file *file, unsigned int command, unsigned long arg)
{
	struct queue *queue = file->private_data;

	if (command != EKIDEN_IOC_RING)
		return -ENOTTY;
	if (!is_owner(queue))
		return -EPERM;
	switch (READ_ONCE(queue->state)) {
	case QUEUE_OPEN:
		break;
	case QUEUE_OTHER_TYPES:
		return -ESTALE;
	default:
		return -EPIPE;
	}
	preempt_disable();
	irq_work_queue(&queue->work);
	preempt_enable();
	return 0;
}

static const struct file_operations queue_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = queue_ioctl,
	.mmap = queue_mmap,
	.poll = queue_poll,
	.flush = queue_flush,
	.release = queue_release,
};

/* Under `control`. What may be had depends on what the user has. */
static int within_limits(size_t bytes, struct text *reason)
{
	u32 number = 0;
	size_t sum = 0;
	struct queue *queue;
	unsigned long at;

	xa_for_each(&queues, at, queue) {
		if (!uid_eq(queue->uid, current_uid()))
			continue;
		number++;
		sum += queue->bytes;
	}
	if (queues_nr >= EKIDEN_QUEUES_MAX) {
		say(reason, "there are too many queues on this machine");
		return -EUSERS;
	}
	if (number >= EKIDEN_QUEUES_USER_MAX) {
		say(reason, "this user has too many queues; close some");
		return -EDQUOT;
	}
	if (sum + bytes > EKIDEN_QUEUE_BYTES_USER_MAX) {
		say(reason, "this user's queues are too large; ask for fewer records, or close some");
		return -EDQUOT;
	}
	return 0;
}

static int check_types(const struct ekiden_policy_table *table, const struct ekiden_open_request *request,
		       struct text *reason)
{
	const struct ekiden_queue_geometry *types = &table->types;

	if (!(table->calls & (BIT_ULL(EKIDEN_CALL_REGISTER_QUEUE) | BIT_ULL(EKIDEN_CALL_ENTER_QUEUE))) ||
	    (!types->up.bytes && !types->down.bytes)) {
		say(reason, "the policy has no queues: it takes hints one by one, or none");
		return -EOPNOTSUPP;
	}
	if (request->up_fingerprint != types->up.fingerprint || request->up_bytes != types->up.bytes) {
		say(reason, "the policy's hints are of another type; build the program for the policy that runs");
		return -EPROTO;
	}
	if (request->down_fingerprint != types->down.fingerprint || request->down_bytes != types->down.bytes) {
		say(reason, "the policy's notices are of another type; build the program for the policy that runs");
		return -EPROTO;
	}
	return 0;
}

static struct queue *new_queue(const struct ekiden_open_request *request)
{
	struct queue *queue = kzalloc(sizeof(*queue), GFP_KERNEL_ACCOUNT);

	if (!queue)
		return NULL;
	queue->geometry = (struct ekiden_queue_geometry) {
		.up = { request->up_fingerprint, request->up_bytes, request->up_records },
		.down = { request->down_fingerprint, request->down_bytes, request->down_records },
	};
	queue->bytes = ekiden_rs_queue_bytes(&queue->geometry);
	queue->memory = queue->bytes ? vmalloc_user(queue->bytes) : NULL;
	if (!queue->memory || !ekiden_rs_queue_init(queue->memory, &queue->geometry)) {
		vfree(queue->memory);
		kfree(queue);
		return NULL;
	}
	queue->state = QUEUE_OPEN;
	queue->owner = get_pid(task_tgid(current));
	queue->signal = current->signal;
	queue->uid = current_uid();
	raw_spin_lock_init(&queue->down);
	init_irq_work(&queue->work, queue_interrupt);
	init_waitqueue_head(&queue->wait);
	return queue;
}

/* Under `control`: the queue with its number, in both tables. Numbers are used again only after all others. */
static int enter(struct queue *queue)
{
	static u32 next = 1;
	u32 number;
	int ret = xa_alloc_cyclic(&queues, &number, queue, XA_LIMIT(1, U32_MAX), &next, GFP_KERNEL);

	if (ret < 0)
		return ret;
	queue->number = number;
	hlist_add_head_rcu(&queue->of_owner, &owners[hash_ptr(queue->signal, OWNERS_BITS)]);
	queues_nr++;
	WRITE_ONCE(ekiden_any_queue, true);
	return 0;
}

/* Under `control`. */
static struct queue *make_queue(struct ekiden_open_request *request, struct text *reason)
{
	struct seat *seat = running.nr ? seat_of(request->seat ? request->seat - 1 : default_seat()) : NULL;
	struct queue *queue;
	int ret;

	if (!running.nr)
		return ERR_PTR(-ENODEV);
	if (!seat || !is_alive(seat))
		return ERR_PTR(-ENOENT);
	if (!may_enter(seat))
		return ERR_PTR(-EACCES);
	ret = check_types(seat->now->policy->table, request, reason);
	if (ret)
		return ERR_PTR(ret);
	queue = new_queue(request);
	if (!queue)
		return ERR_PTR(-ENOMEM);
	queue->seat = seat - running.seats;
	ret = within_limits(queue->bytes, reason) ?: enter(queue);
	if (ret) {
		free_queue(queue);
		return ERR_PTR(ret);
	}
	return queue;
}

/* A descriptor of a new queue. */
long open_queue(struct ekiden_open_request *request, void __user *arg, struct text *reason)
{
	struct file *file = NULL;
	struct queue *queue;
	int fd;

	if (!is_power_of_2(request->up_records) || request->up_records > EKIDEN_QUEUE_RECORDS_MAX ||
	    !is_power_of_2(request->down_records) || request->down_records > EKIDEN_QUEUE_RECORDS_MAX ||
	    request->up_bytes > EKIDEN_QUEUE_RECORD_MAX || request->down_bytes > EKIDEN_QUEUE_RECORD_MAX ||
	    request->seat > EKIDEN_SEATS || request->flags)
		return -EINVAL;
	fd = get_unused_fd_flags(O_CLOEXEC);
	if (fd < 0)
		return fd;
	mutex_lock(&control);
	queue = make_queue(request, reason);
	mutex_unlock(&control);
	if (IS_ERR(queue)) {
		put_unused_fd(fd);
		return PTR_ERR(queue);
	}
	watch_events();
	/* From here on its release undoes everything. */
	file = anon_inode_getfile("[ekiden-queue]", &queue_fops, queue, O_RDWR);
	if (IS_ERR(file)) {
		remove_queue(queue);
		put_unused_fd(fd);
		return PTR_ERR(file);
	}
	request->queue = queue->number;
	request->bytes = queue->bytes;
	mutex_lock(&control);
	/* The policy may have ended meanwhile; then the program finds that out by the queue. */
	if (fits(queue) && READ_ONCE(queue->state) == QUEUE_OPEN) {
		queue->known = true;
		past[queue->seat].opened++;
		tell(queue, EKIDEN_QUEUE_OPEN);
	}
	mutex_unlock(&control);
	if (copy_to_user(arg, request, sizeof(*request))) {
		fput(file);
		put_unused_fd(fd);
		return -EFAULT;
	}
	fd_install(fd, file);
	return fd;
}

int ekiden_queues_begin(void)
{
	hints_room = __alloc_percpu(HINTS_LEN, sizeof(u64));
	if (!hints_room)
		return -ENOMEM;
	frees = alloc_workqueue("ekiden_queues", WQ_UNBOUND, 0);
	if (frees)
		return 0;
	free_percpu(hints_room);
	return -ENOMEM;
}

/* No descriptor is left. */
void ekiden_queues_ended(void)
{
	rcu_barrier();
	destroy_workqueue(frees);
	free_percpu(hints_room);
}

/* ---- status ---- */

/* So many queues of a policy are shown one by one, the oldest first. */
#define QUEUES_SHOWN 8

static int put_sums(char *to, size_t size, const struct sums *sums)
{
	return scnprintf(to, size,
			 ",\"hints\":%llu,\"refused\":%llu,\"nonsense\":%llu,\"full\":%llu,\"notices\":%llu,\"lost\":%llu",
			 sums->hints, sums->refused, sums->nonsense, sums->full, sums->notices, sums->lost);
}

static bool is_shown(const struct queue *queue, u32 seat)
{
	return queue->seat == seat && queue->known && READ_ONCE(queue->state) == QUEUE_OPEN;
}

static int put_types(char *to, size_t size, const char *name, const struct ekiden_queue_side *side)
{
	return scnprintf(to, size, "\"%s\":{\"fingerprint\":%llu,\"bytes\":%u}", name, side->fingerprint, side->bytes);
}

/*
 * Under `control`. What a policy's queues are made of; sums of what those have counted that are and were open; and the
 * same of some that are.
 */
int put_queues(char *to, size_t size, u32 seat)
{
	const struct ekiden_queue_geometry *types = &running.seats[seat].now->policy->table->types;
	struct sums sums = past[seat].sums;
	const char *comma = "";
	struct queue *queue;
	unsigned long number;
	u32 open = 0, shown = 0;
	int at = 0;

	if (types->up.bytes || types->down.bytes) {
		at += scnprintf(to + at, size - at, ",\"types\":{");
		at += put_types(to + at, size - at, "hint", &types->up);
		at += scnprintf(to + at, size - at, ",");
		at += put_types(to + at, size - at, "notice", &types->down);
		at += scnprintf(to + at, size - at, "}");
	}
	if (!past[seat].opened)
		return at;
	xa_for_each(&queues, number, queue) {
		if (!is_shown(queue, seat))
			continue;
		open++;
		add_sums(&sums, queue);
	}
	at += scnprintf(to + at, size - at, ",\"queues\":{\"opened\":%llu,\"open\":%u", past[seat].opened, open);
	at += put_sums(to + at, size - at, &sums);
	at += scnprintf(to + at, size - at, ",\"list\":[");
	xa_for_each(&queues, number, queue) {
		struct sums own = {};

		if (!is_shown(queue, seat) || shown++ >= QUEUES_SHOWN)
			continue;
		add_sums(&own, queue);
		at += scnprintf(to + at, size - at, "%s{\"queue\":%u,\"owner\":%u", comma, queue->number,
				pid_nr(queue->owner));
		at += put_sums(to + at, size - at, &own);
		at += scnprintf(to + at, size - at, "}");
		comma = ",";
	}
	return at + scnprintf(to + at, size - at, "]}");
}
