/* The version of the library that a program runs with. C, like all that the shared library exports. */
#pragma once

#ifndef PENSTOCK_API
#define PENSTOCK_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* "0.1.0". Lives as long as the library. */
PENSTOCK_API const char* penstock_version(void);

#ifdef __cplusplus
}
#endif
