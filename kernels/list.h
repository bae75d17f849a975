// Rows that lie anywhere, or one after another. Included behind the header of an instruction set.
#ifndef GANGLION_LIST_H
#define GANGLION_LIST_H

#include "ganglion.h"

// Row `i` of a list, or, where that is null, of a block.
INLINE const uint8_t *row_at(const uint8_t *const *list, const uint8_t *block, size_t stride,
                             size_t i) {
    return list != NULL ? list[i] : block + i * stride;
}

#endif
