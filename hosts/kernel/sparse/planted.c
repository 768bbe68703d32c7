// SPDX-License-Identifier: GPL-2.0-only
/*
 * Mistakes that scripts/sparse has to find, or else it fails. Above each stands what sparse says of it, in part. Data that is __percpu the
 * compiler knows, too.
 */
#include <linux/mutex.h>
#include <linux/rcupdate.h>
#include <linux/types.h>

static DEFINE_MUTEX(planted);

/* sparse: symbol 'not_static' was not declared */
int not_static;

/* sparse: dereference of noderef expression */
static int __used read_user(const int __user *at)
{
	return *at;
}

/* sparse: got int const [noderef] __user *at */
static const int __used *take_user(const int __user *at)
{
	return at;
}

/* sparse: got int const [noderef] __rcu *at */
static const int __used *take_rcu(const int __rcu *at)
{
	return at;
}

/* sparse: restricted __be32 degrades to integer */
static u32 __used byte_order(__be32 big)
{
	return big + 1;
}

/* sparse: Using plain integer as NULL pointer */
static const int __used *zero_for_null(void)
{
	return 0;
}

/* sparse: context imbalance in 'keep_rcu' */
static void __used keep_rcu(bool is_rare)
{
	rcu_read_lock();
	if (!is_rare)
		rcu_read_unlock();
}

/* sparse: context imbalance in 'keep_mutex' */
static int __used keep_mutex(bool is_rare)
{
	if (mutex_lock_killable(&planted))
		return -1;
	if (is_rare)
		return -1;
	mutex_unlock(&planted);
	return 0;
}

/* sparse: context imbalance in 'unlock_twice' */
static void __used unlock_twice(void)
{
	mutex_lock(&planted);
	mutex_unlock(&planted);
	mutex_unlock(&planted);
}
