/* Functions that are compiled for processors with AVX2 as well, or also for those with AVX-512, of which the loader
 * chooses. */

#ifndef FEEDLINE_FAST_H
#define FEEDLINE_FAST_H

#include <features.h>

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && __GNUC__ >= 12 && !defined(__clang__) \
    && !defined(__SANITIZE_ADDRESS__)
#define FAST __attribute__((target_clones("arch=x86-64-v3", "default")))
#define FAST_WIDE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FAST
#define FAST_WIDE
#endif

#endif
