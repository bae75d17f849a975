// A batch of activations times rows: the result is cut into tiles. Included behind the header of an
// instruction set.
//
// The file that includes this one gives quantized_tile, which fills a tile.
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

INLINE void quantized_tile(const tile *t, int code_bytes);

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

// Tiles of up to tile_rows by tile_tokens.
INLINE void gemm(float *out, size_t out_stride, size_t count, int code_bytes, const uint8_t *rows,
                 size_t stride, const int8_t *codes, size_t code_stride, const float *scales,
                 const uint32_t *at, size_t tokens, size_t groups, size_t tile_rows,
                 size_t tile_tokens) {
    for (size_t row = 0; row < count; row += tile_rows) {
        for (size_t token = 0; token < tokens; token += tile_tokens) {
            tile t = {
                .out = out + token * out_stride + row,
                .out_stride = out_stride,
                .rows = rows + row * stride,
                .stride = stride,
                .row_count = min(count - row, tile_rows),
                .codes = codes,
                .code_stride = code_stride,
                .scales = scales,
                .at = at + token,
                .token_count = min(tokens - token, tile_tokens),
                .groups = groups,
            };
            quantized_tile(&t, code_bytes);
        }
    }
}

#endif
