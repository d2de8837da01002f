// For the thread sanitizer: oneTBB's library is not instrumented, so the sanitizer does not see that a task begins
// after what its creator did before, and that who waits for a task goes on after it. These functions tell it; in other
// builds they do nothing. For this folder alone.
#pragma once

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define PENSTOCK_TSAN
#endif
#elif defined(__SANITIZE_THREAD__)
#define PENSTOCK_TSAN
#endif

#if defined(PENSTOCK_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace penstock::cpu_optim::task_order {

#if defined(PENSTOCK_TSAN)
// One address each for all tasks: a task cannot read its own before it is known to come after its creator.
inline char begins, ends;

inline void before_create() { __tsan_release(&begins); }
inline void at_begin() { __tsan_acquire(&begins); }
inline void at_end() { __tsan_release(&ends); }
inline void after_wait() { __tsan_acquire(&ends); }
#else
inline void before_create() {}
inline void at_begin() {}
inline void at_end() {}
inline void after_wait() {}
#endif

// What oneTBB gets to copy from thread to thread, which the sanitizer does not see either. `Function` lies where its
// creator put it before before_create(), and calls at_begin() first.
template <class Function>
struct Handle {
  Function* function;

  template <class... Arguments>
  __attribute__((no_sanitize("thread"))) void operator()(Arguments... arguments) const {
    (*function)(arguments...);
  }
};
template <class Function>
Handle(Function*) -> Handle<Function>;

}  // namespace penstock::cpu_optim::task_order
