// Everything that a kernel calls is forced inline. Its name would otherwise reach the linker from a source file that is
// compiled for a newer processor, and might be chosen for code that must run on an older one.
#pragma once

#define PENSTOCK_LANES [[gnu::always_inline]] static inline
