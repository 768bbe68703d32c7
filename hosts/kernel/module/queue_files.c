// SPDX-License-Identifier: GPL-2.0-only
/* Descriptors of queues: who may open one, what can be done with it, and when it closes. */
#include <linux/anon_inodes.h>
#include <linux/cred.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/poll.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include "queues.h"

/* Where queues are freed that no CPU looks at any more. */
static struct workqueue_struct *frees;

/* How many are open, under `ekiden_control`. */
static u32 queues_nr;

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
	mutex_lock(&ekiden_control);
	if (queue->known && before == QUEUE_OPEN && ekiden_queue_fits(queue)) {
		bool more = queue->geometry.up.bytes > 0;
		u64 start_ns;

		/* What it said before it ended still counts. */
		while (more && left > 0) {
			local_irq_disable();
			start_ns = ekiden_times_begin();
			more = ekiden_queue_take_hints(queue);
			ekiden_times_end(EKIDEN_TIME_HINTS, start_ns);
			local_irq_enable();
			left -= HINTS_LEN / queue->geometry.up.bytes;
			cond_resched();
		}
		ekiden_queue_tell(queue, EKIDEN_QUEUE_CLOSE);
		ekiden_queue_sum_up(queue);
	}
	queue->known = false;
	mutex_unlock(&ekiden_control);
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
	/* A process that has it mapped keeps the pages. */
	free_queue(queue);
}

static void remove_queue(struct queue *queue)
{
	close_queue(queue);
	mutex_lock(&ekiden_control);
	xa_erase(&ekiden_queues, queue->number);
	ekiden_queue_is_not_owned(queue);
	queues_nr--;
	mutex_unlock(&ekiden_control);
	ekiden_watch_events_no_more();
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
	/*
	 * Pairs with the barriers of wq_has_sleeper() where a notice is written and where the policy goes; poll_wait() has one since
	 * Linux 6.14 only.
	 */
	smp_mb();
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

/* Under `ekiden_control`. What may be had depends on what the user has. */
static int within_limits(size_t bytes, struct ekiden_text *reason)
{
	u32 number = 0;
	size_t sum = 0;
	struct queue *queue;
	unsigned long at;

	xa_for_each(&ekiden_queues, at, queue) {
		if (!uid_eq(queue->uid, current_uid()))
			continue;
		number++;
		sum += queue->bytes;
	}
	if (queues_nr >= EKIDEN_QUEUES_MAX) {
		ekiden_say(reason, "there are too many queues on this machine");
		return -EUSERS;
	}
	if (number >= EKIDEN_QUEUES_USER_MAX) {
		ekiden_say(reason, "this user has too many queues; close some");
		return -EDQUOT;
	}
	if (sum + bytes > EKIDEN_QUEUE_BYTES_USER_MAX) {
		ekiden_say(reason, "this user's queues are too large; ask for fewer records, or close some");
		return -EDQUOT;
	}
	return 0;
}

static int check_types(const struct ekiden_policy_table *table, const struct ekiden_open_request *request,
		       struct ekiden_text *reason)
{
	const struct ekiden_queue_geometry *types = &table->types;

	if (!(table->calls & (BIT_ULL(EKIDEN_CALL_REGISTER_QUEUE) | BIT_ULL(EKIDEN_CALL_ENTER_QUEUE))) ||
	    (!types->up.bytes && !types->down.bytes)) {
		ekiden_say(reason, "the policy has no queues: it takes hints one by one, or none");
		return -EOPNOTSUPP;
	}
	if (request->up_fingerprint != types->up.fingerprint || request->up_bytes != types->up.bytes) {
		ekiden_say(reason, "the policy's hints are of another type; build the program for the policy that runs");
		return -EPROTO;
	}
	if (request->down_fingerprint != types->down.fingerprint || request->down_bytes != types->down.bytes) {
		ekiden_say(reason, "the policy's notices are of another type; build the program for the policy that runs");
		return -EPROTO;
	}
	return 0;
}

static struct queue *new_queue(const struct ekiden_open_request *request)
{
	struct queue *queue = kzalloc(sizeof(*queue), GFP_KERNEL_ACCOUNT);

	if (!queue)
		return NULL;
	queue->geometry = (struct ekiden_queue_geometry){
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
	init_irq_work(&queue->work, ekiden_queue_interrupt);
	init_waitqueue_head(&queue->wait);
	return queue;
}

/* Under `ekiden_control`: the queue with its number, in both tables. Numbers are used again only after all others. */
static int enter(struct queue *queue)
{
	static u32 next = 1;
	u32 number;
	int ret = xa_alloc_cyclic(&ekiden_queues, &number, queue, XA_LIMIT(1, U32_MAX), &next, GFP_KERNEL);

	if (ret < 0)
		return ret;
	queue->number = number;
	ekiden_queue_is_owned(queue);
	queues_nr++;
	return 0;
}

/* Under `ekiden_control`. */
static struct queue *make_queue(struct ekiden_open_request *request, struct ekiden_text *reason)
{
	struct ekiden_policy_slot *policy_slot =
		ekiden_running.nr
			? ekiden_policy_slot_of(request->policy_slot ? request->policy_slot - 1 : ekiden_default_policy_slot())
			: NULL;
	struct queue *queue;
	int ret;

	if (!ekiden_running.nr)
		return ERR_PTR(-ENODEV);
	if (!policy_slot || !ekiden_is_alive(policy_slot))
		return ERR_PTR(-ENOENT);
	if (!ekiden_may_enter(policy_slot))
		return ERR_PTR(-EACCES);
	ret = check_types(policy_slot->now->policy->table, request, reason);
	if (ret)
		return ERR_PTR(ret);
	queue = new_queue(request);
	if (!queue)
		return ERR_PTR(-ENOMEM);
	queue->policy_slot = policy_slot - ekiden_running.policy_slots;
	ret = within_limits(queue->bytes, reason) ?: enter(queue);
	if (ret) {
		free_queue(queue);
		return ERR_PTR(ret);
	}
	return queue;
}

/* A descriptor of a new queue. */
long ekiden_open_queue(struct ekiden_open_request *request, void __user *arg, struct ekiden_text *reason)
{
	struct file *file = NULL;
	struct queue *queue;
	int fd;

	if (!is_power_of_2(request->up_records) || request->up_records > EKIDEN_QUEUE_RECORDS_MAX ||
	    !is_power_of_2(request->down_records) || request->down_records > EKIDEN_QUEUE_RECORDS_MAX ||
	    request->up_bytes > EKIDEN_QUEUE_RECORD_MAX || request->down_bytes > EKIDEN_QUEUE_RECORD_MAX ||
	    request->policy_slot > EKIDEN_POLICY_SLOTS || request->flags)
		return -EINVAL;
	fd = get_unused_fd_flags(O_CLOEXEC);
	if (fd < 0)
		return fd;
	mutex_lock(&ekiden_control);
	queue = make_queue(request, reason);
	mutex_unlock(&ekiden_control);
	if (IS_ERR(queue)) {
		put_unused_fd(fd);
		return PTR_ERR(queue);
	}
	ekiden_watch_events();
	/* From here on its release undoes everything. */
	file = anon_inode_getfile("[ekiden-queue]", &queue_fops, queue, O_RDWR);
	if (IS_ERR(file)) {
		remove_queue(queue);
		put_unused_fd(fd);
		return PTR_ERR(file);
	}
	request->queue = queue->number;
	request->bytes = queue->bytes;
	mutex_lock(&ekiden_control);
	/* The policy may have ended meanwhile; then the program finds that out by the queue. */
	if (ekiden_queue_fits(queue) && READ_ONCE(queue->state) == QUEUE_OPEN) {
		queue->known = true;
		ekiden_queues_past[queue->policy_slot].opened++;
		ekiden_queue_tell(queue, EKIDEN_QUEUE_OPEN);
	}
	mutex_unlock(&ekiden_control);
	if (copy_to_user(arg, request, sizeof(*request))) {
		fput(file);
		put_unused_fd(fd);
		return -EFAULT;
	}
	fd_install(fd, file);
	return fd;
}

int ekiden_queue_files_begin(void)
{
	frees = alloc_workqueue("ekiden_queues", WQ_UNBOUND, 0);
	return frees ? 0 : -ENOMEM;
}

void ekiden_queue_files_ended(void)
{
	rcu_barrier();
	destroy_workqueue(frees);
}
