// Cached keys and values as the attention kernels take them.
#ifndef GANGLION_X86_KV_H
#define GANGLION_X86_KV_H

#include <stddef.h>

// Rows of keys or values. The type is a compile-time constant; scales are of q8 rows only, one for
// each 32 codes.
typedef struct {
    const void *at;
    const float *scales;
    enum { ROWS_F32, ROWS_F16, ROWS_Q8 } type;
} kv_rows;

#define F32_ROWS(x) ((kv_rows){.at = (x), .type = ROWS_F32})
#define F16_ROWS(x) ((kv_rows){.at = (x), .type = ROWS_F16})
#define Q8_ROWS(x, s) ((kv_rows){.at = (x), .scales = (s), .type = ROWS_Q8})

#endif
