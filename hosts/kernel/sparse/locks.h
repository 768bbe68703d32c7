/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tells sparse which functions take and release locks. Since Linux 7.0 the kernel's headers say so to clang alone: these are their words for
 * it, as sparse has them. It counts in each function the locks that are held, which it does not tell apart, and does not ask whether a
 * caller holds what a function needs. The compiler sees nothing of this.
 */
#if defined(__CHECKER__) && !defined(EKIDEN_LOCKS_H)
#define EKIDEN_LOCKS_H

#include <linux/compiler-context-analysis.h>

#undef __acquires_ctx_lock
#undef __acquires_shared_ctx_lock
#undef __releases_ctx_lock
#undef __releases_shared_ctx_lock
#undef __requires_ctx_lock
#undef __requires_shared_ctx_lock
#undef __acquire_ctx_lock
#undef __acquire_shared_ctx_lock
#undef __release_ctx_lock
#undef __release_shared_ctx_lock

#define __acquires_ctx_lock(...) __attribute__((context(__VA_ARGS__, 0, 1)))
#define __acquires_shared_ctx_lock(...) __attribute__((context(__VA_ARGS__, 0, 1)))
#define __releases_ctx_lock(...) __attribute__((context(__VA_ARGS__, 1, 0)))
#define __releases_shared_ctx_lock(...) __attribute__((context(__VA_ARGS__, 1, 0)))
#define __requires_ctx_lock(...) __attribute__((context(__VA_ARGS__, 1, 1)))
#define __requires_shared_ctx_lock(...) __attribute__((context(__VA_ARGS__, 1, 1)))
#define __acquire_ctx_lock(lock) __context__(lock, 1)
#define __acquire_shared_ctx_lock(lock) __context__(lock, 1)
#define __release_ctx_lock(lock) __context__(lock, -1)
#define __release_shared_ctx_lock(lock) __context__(lock, -1)

/* What takes a lock only perhaps cannot be declared for sparse, but written so that it sees where it is taken. This is all that we use. */
#include <linux/mutex.h>
#define mutex_lock_killable(lock) \
	((mutex_lock_killable)(lock) ? 1 : ({ \
		__acquire(lock); \
		0; \
	}))

#endif
