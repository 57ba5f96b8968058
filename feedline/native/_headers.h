/* Walk the page headers of a column chunk: Thrift's compact protocol, as Parquet uses it. */

#ifndef FEEDLINE_HEADERS_H
#define FEEDLINE_HEADERS_H

#include "_encodings.h"

#define DEPTH 16 /* of structures inside a header; the format has four */

/* Other kinds are not read: a kind that a damaged byte made would leave out a page's rows. */
enum { DATA_PAGE = 0, DICTIONARY_PAGE = 2, DATA_PAGE_V2 = 3 };

/* One page, as `page_table` returns it; -1 is what a header does not say. */
typedef struct {
    int64_t kind, start, compressed, uncompressed, values, encoding, def_encoding, rep_encoding, rows, nulls, def_bytes,
        rep_bytes, is_compressed, crc;
} Page;

#define PAGE_FIELDS 14

typedef struct {
    const uint8_t *at, *end;
} Thrift;

static int thrift_varint(Thrift *thrift, uint64_t *value) {
    const int bytes = read_varint(thrift->at, thrift->end, 64, value);
    thrift->at += bytes;
    return bytes ? 0 : -1;
}

static int thrift_int(Thrift *thrift, int64_t *value) {
    uint64_t raw;
    if (thrift_varint(thrift, &raw) != 0)
        return -1;
    *value = (int64_t)(raw >> 1) ^ -(int64_t)(raw & 1);
    return 0;
}

/* An integer of 32 bits, of which all numbers in a header are. */
static int thrift_int32(Thrift *thrift, int64_t *value) {
    return thrift_int(thrift, value) != 0 || *value < INT32_MIN || *value > INT32_MAX ? -1 : 0;
}

static int thrift_forward(Thrift *thrift, uint64_t bytes) {
    if ((uint64_t)(thrift->end - thrift->at) < bytes)
        return -1;
    thrift->at += bytes;
    return 0;
}

/* The next field of a structure: its type, 0 at the end. Returns -1 where there is none. */
static int thrift_field(Thrift *thrift, int64_t *id) {
    if (thrift->at >= thrift->end)
        return -1;
    const uint8_t head = *thrift->at++;
    if (head == 0)
        return 0;
    if (head >> 4)
        *id += head >> 4;
    else if (thrift_int(thrift, id) != 0)
        return -1;
    if (*id < INT16_MIN || *id > INT16_MAX) /* ids have 16 bits */
        return -1;
    return head & 15;
}

static int thrift_skip(Thrift *thrift, int type, int depth) {
    uint64_t count;
    int64_t id = 0;
    if (depth > DEPTH)
        return -1;
    switch (type) {
    case 1: /* true, false: the type is the value */
    case 2:
        return 0;
    case 3:
        return thrift_forward(thrift, 1);
    case 4: /* integers */
    case 5:
    case 6:
        return thrift_varint(thrift, &count);
    case 7:
        return thrift_forward(thrift, 8);
    case 8:
        return thrift_varint(thrift, &count) != 0 ? -1 : thrift_forward(thrift, count);
    case 9: /* list, set */
    case 10:
        if (thrift->at >= thrift->end)
            return -1;
        const uint8_t head = *thrift->at++;
        count = head >> 4;
        if (count == 15 && thrift_varint(thrift, &count) != 0)
            return -1;
        if (count > (uint64_t)(thrift->end - thrift->at))
            return -1;
        for (; count > 0; count--)
            if ((head & 15) <= 2 ? thrift_forward(thrift, 1) : thrift_skip(thrift, head & 15, depth + 1))
                return -1;
        return 0;
    case 12:
        for (int field; (field = thrift_field(thrift, &id)) != 0;)
            if (field < 0 || thrift_skip(thrift, field, depth + 1) != 0)
                return -1;
        return 0;
    }
    return -1;
}

/* The header of a page's own kind. `fields`: where its integers go, by id from 1 (NULL: skipped). */
static int thrift_integers(Thrift *thrift, int64_t *const *fields, int count, int64_t *flag, int flag_id) {
    int64_t id = 0;
    for (int type; (type = thrift_field(thrift, &id)) != 0;) {
        if (type < 0)
            return -1;
        if (id == flag_id && (type == 1 || type == 2)) {
            *flag = type == 1;
        } else if (id >= 1 && id <= count && fields[id - 1] != NULL) {
            if (type != 5 || thrift_int32(thrift, fields[id - 1]) != 0)
                return -1;
        } else if (thrift_skip(thrift, type, 1) != 0) {
            return -1;
        }
    }
    return 0;
}

static int read_header(Thrift *thrift, Page *page) {
    int64_t id = 0, unused = -1;
    for (int field = 0; field < PAGE_FIELDS; field++)
        ((int64_t *)page)[field] = -1;
    page->is_compressed = 1;
    int64_t own = -1;
    for (int type; (type = thrift_field(thrift, &id)) != 0;) {
        if (type < 0)
            return -1;
        int64_t *const integers[] = {&page->kind, &page->uncompressed, &page->compressed, &page->crc};
        int64_t *const data[] = {&page->values, &page->encoding, &page->def_encoding, &page->rep_encoding};
        int64_t *const dictionary[] = {&page->values, &page->encoding};
        int64_t *const data_v2[] = {&page->values, &page->nulls, &page->rows, &page->encoding, &page->def_bytes,
                                    &page->rep_bytes};
        int failed;
        if (id >= 1 && id <= 4)
            failed = type != 5 || thrift_int32(thrift, integers[id - 1]);
        else if (id == 5 && type == 12)
            failed = thrift_integers(thrift, data, 4, &unused, 0), own = DATA_PAGE;
        else if (id == 7 && type == 12)
            failed = thrift_integers(thrift, dictionary, 2, &unused, 0), own = DICTIONARY_PAGE;
        else if (id == 8 && type == 12)
            failed = thrift_integers(thrift, data_v2, 6, &page->is_compressed, 7), own = DATA_PAGE_V2;
        else
            failed = thrift_skip(thrift, type, 1);
        if (failed)
            return -1;
        if (id == 4)
            page->crc &= UINT32_MAX;
    }
    if (page->kind < 0 || own != page->kind || page->compressed < 0 || page->uncompressed < 0 || page->values < 0
        || page->encoding < 0)
        return -1;
    if (page->kind == DATA_PAGE && (page->def_encoding < 0 || page->rep_encoding < 0))
        return -1;
    if (page->kind == DATA_PAGE_V2
        && (page->rows < 0 || page->nulls < 0 || page->def_bytes < 0 || page->rep_bytes < 0
            || page->def_bytes + page->rep_bytes > page->compressed
            || page->def_bytes + page->rep_bytes > page->uncompressed))
        return -1;
    return 0;
}

#endif
