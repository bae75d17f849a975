// A batch of activations times rows: the result is cut into tiles. Included behind the header of an
// instruction set.
#ifndef GANGLION_TILE_H
#define GANGLION_TILE_H

#include "ganglion.h"

// Some rows by some tokens.
typedef struct {
    float *out;
    size_t out_stride;
    const uint8_t *rows;
    size_t stride, row_count;
    const int8_t *codes;
    size_t code_stride;
    const float *scales;
    const uint32_t *at;
    size_t token_count, groups;
} tile;

INLINE size_t min(size_t a, size_t b) {
    return a < b ? a : b;
}

// A row; those that are not there repeat the last one.
INLINE const uint8_t *row_of(const tile *t, size_t row) {
    return t->rows + min(row, t->row_count - 1) * t->stride;
}

// Codes and scales of a token from a group on.
INLINE const int8_t *codes_of(const tile *t, size_t token, size_t group) {
    return t->codes + t->at[token] * t->code_stride + group * GROUP;
}

INLINE const float *scales_of(const tile *t, size_t token, size_t group) {
    return t->scales + t->at[token] * t->groups + group;
}

#endif
