/* Append rows of a page: find where lists begin and which elements are there. */

#ifndef FEEDLINE_LEVELS_H
#define FEEDLINE_LEVELS_H

#include "_lz4.h"
#include "_values.h"

static int64_t count_zeros(const uint8_t *bytes, int64_t count) {
    return count - count_ones(bytes, count);
}

/* Of rows, keep those that start a run, by their flags, or hold a value. Returns how many these are. */
static int64_t keep_rows(uint8_t *valid, const uint8_t *flags, int64_t rows, int64_t values) {
    int64_t kept = 0;
    if (memcmp(valid, flags, (size_t)rows) == 0) /* all that start runs hold one, and no others */
        return values;
    int64_t row = 0;
    for (; row + 8 <= rows; row += 8) {
        const uint64_t are_there = load64(valid + row);
        uint64_t rest = (are_there | load64(flags + row)) & UINT64_C(0x0101010101010101);
        for (; rest; rest &= rest - 1)
            valid[kept++] = are_there >> __builtin_ctzll(rest) & 1;
    }
    for (; row < rows; row++) {
        const uint8_t is_there = valid[row];
        valid[kept] = is_there;
        kept += is_there | (flags[row] & 1);
    }
    return kept;
}

/* Append up to so many rows of a flat column. */
static int advance_flat(Cursor *cursor, int64_t rows) {
    int64_t left = rows < cursor->slots ? rows : cursor->slots;
    if (cursor->max_def == 0) {
        cursor->slots -= left;
        return append_values(cursor, NULL, left, left);
    }
    while (left > 0) {
        int64_t some = runs_repeated(&cursor->defs, cursor->max_def, left);
        int64_t count = some, kept = some;
        if (some > 0) {
            cursor->defs.left -= some;
        } else {
            kept = some = left < BLOCK ? left : BLOCK;
            if (runs_read_bytes(&cursor->defs, cursor->def, some, cursor->max_def) != 0)
                return fail(cursor, LEVELS_END);
            count = count_ones(cursor->def, some);
            if (cursor->flags.obj != NULL)
                kept = keep_rows(cursor->def, flags_ahead(cursor), some, count);
        }
        if (append_values(cursor, cursor->def, kept, count) != 0)
            return -1;
        cursor->passed += some - kept;
        cursor->slots -= some;
        left -= some;
    }
    return 0;
}

/* Move bytes down. With a distance of 16 or more, up to 15 bytes behind them are overwritten, too. */
static void move_down(uint8_t *to, const uint8_t *from, size_t length) {
    if (from - to < 16)
        memmove(to, from, length);
    else
        copy_wild(to, from, length);
}

/* Drop what lists have beyond `prefix` elements, of the elements from `first` on: the rest of the list that was open, and
 * the lists from `row` on. */
static void cut_lists(Cursor *cursor, int64_t row, int64_t first) {
    const size_t size = slot_size(cursor);
    uint8_t *values = cursor->values.bytes, *valid = cursor->nulls > 0 ? cursor->valid.bytes : NULL;
    int32_t *starts = (int32_t *)cursor->starts.bytes;
    const int64_t nulls = valid == NULL ? 0 : count_zeros(valid + first, cursor->elements - first);
    int64_t to = first, from = first;
    for (;; row++) {
        const int64_t stop = row < cursor->rows ? starts[row] : cursor->elements;
        const int64_t most = cursor->prefix - cursor->open, some = stop - from < most ? stop - from : most;
        if (to != from && some > 0) {
            move_down(values + (size_t)to * size, values + (size_t)from * size, (size_t)some * size);
            if (valid != NULL)
                memmove(valid + to, valid + from, (size_t)some);
        }
        to += some;
        cursor->open += some;
        if (row >= cursor->rows)
            break;
        starts[row] = (int32_t)to;
        from = stop;
        cursor->open = 0;
    }
    cursor->elements = to;
    cursor->values.used = (size_t)to * size;
    if (valid != NULL) {
        cursor->nulls += count_zeros(valid + first, to - first) - nulls;
        cursor->valid.used = (size_t)to;
    }
}

/* Keep that lists are not null, where that is kept: from the first null on. */
static int append_valid_lists(Cursor *cursor, int64_t count) {
    Vector *valid = &cursor->list_valid;
    if (cursor->null_lists == 0 || count == 0)
        return 0;
    if (reserve(cursor, valid, count, 1) != 0)
        return -1;
    memset(valid->bytes + valid->used, 1, (size_t)count);
    valid->used += (size_t)count;
    return 0;
}

/* Begin a list at an element. */
static int begin_list(Cursor *cursor, int64_t start, int is_null) {
    cursor->starts.used = (size_t)cursor->rows * sizeof(int32_t);
    if (reserve(cursor, &cursor->starts, 1, sizeof(int32_t)) != 0)
        return -1;
    ((int32_t *)cursor->starts.bytes)[cursor->rows] = (int32_t)start;
    if (is_null && cursor->null_lists == 0) {
        cursor->null_lists = 1;
        if (append_valid_lists(cursor, cursor->rows + 1) != 0)
            return -1;
        cursor->list_valid.bytes[cursor->rows] = 0;
    } else if (cursor->null_lists > 0) {
        if (append_valid_lists(cursor, 1) != 0)
            return -1;
        cursor->list_valid.bytes[cursor->rows] = !is_null;
        cursor->null_lists += is_null;
    }
    cursor->rows++;
    return 0;
}

/* Levels as bits: where lists begin, which of these are not null, which levels are of elements, and of values. */
typedef struct {
    uint64_t begins, listed, element, value;
} LevelBits;

INLINE uint64_t at_least(uint32_t level, uint64_t low, uint64_t high) {
    return level == 0 ? UINT64_MAX : level == 1 ? low | high : level == 2 ? high : low & high;
}

/* Those of the next levels, at most a word. */
INLINE LevelBits level_bits(const Cursor *cursor, int levels) {
    const uint8_t *rep = cursor->rep + cursor->level, *def = cursor->def + cursor->level;
    uint64_t inside = 0, low = 0, high = 0;
    for (int byte = 0; byte < 8; byte++) {
        const uint64_t defs = load64(def + 8 * byte);
        inside |= lowest_bits(load64(rep + 8 * byte)) << 8 * byte;
        low |= lowest_bits(defs) << 8 * byte;
        high |= lowest_bits(defs >> 1) << 8 * byte;
    }
    const uint64_t mask = UINT64_MAX >> (WORD - levels);
    return (LevelBits){~inside & mask, at_least(cursor->listed, low, high) & mask,
                       at_least(cursor->defined, low, high) & mask, at_least(cursor->max_def, low, high) & mask};
}

/* Begin null lists at an element: those that start runs, if there are flags. */
static int begin_null_lists(Cursor *cursor, int64_t start, int count) {
    if (cursor->flags.obj == NULL) {
        for (int row = 0; row < count; row++)
            if (begin_list(cursor, start, 1) != 0)
                return -1;
        return 0;
    }
    const uint8_t *flags = flags_ahead(cursor), *end = (const uint8_t *)cursor->flags.buf + cursor->flags.len;
    for (int row = 0; row < count;) {
        const int some = count - row < 8 ? count - row : 8;
        const uint64_t word = load_some(flags + row, end) & UINT64_C(0x0101010101010101) >> 8 * (8 - some);
        const int passed = word ? __builtin_ctzll(word) / 8 : some;
        cursor->passed += passed;
        row += passed;
        if (word && begin_list(cursor, start, 1) != 0)
            return -1;
        row += word != 0;
    }
    return 0;
}

/* Begin the lists of a word of levels, of which the first element is element `first`. */
INLINE int begin_lists(Cursor *cursor, const LevelBits *bits, int64_t first) {
    for (uint64_t rest = bits->begins; rest;) {
        const int bit = __builtin_ctzll(rest);
        const int64_t start = first + __builtin_popcountll(bits->element & ((UINT64_C(1) << bit) - 1));
        const uint64_t others = ~((bits->begins & ~bits->listed) >> bit);
        const int nulls = others ? __builtin_ctzll(others) : WORD; /* side by side */
        if ((nulls ? begin_null_lists(cursor, start, nulls) : begin_list(cursor, start, 0)) != 0)
            return -1;
        const int next = bit + (nulls ? nulls : 1);
        rest = next < WORD ? rest >> next << next : 0;
    }
    return 0;
}

/* Take levels that were decoded, and begin their lists: which of the `elements` are there, and how many. Returns 1 where
 * the list after the last one begins, 0 if that was not reached, -1 on an error. */
FAST static int read_levels(Cursor *cursor, int64_t rows, uint8_t *valid, int64_t *elements, int64_t *count) {
    const int64_t first = cursor->elements;
    int stop = 0;
    while (cursor->level < cursor->ahead && !stop) {
        int some = cursor->ahead - cursor->level < WORD ? cursor->ahead - cursor->level : WORD;
        LevelBits bits = level_bits(cursor, some);
        const int64_t room = rows - rows_seen(cursor);
        if (__builtin_popcountll(bits.begins) > room) { /* find the list after the last one */
            uint64_t rest = bits.begins;
            for (int64_t row = 0; row < room; row++)
                rest &= rest - 1;
            some = __builtin_ctzll(rest);
            stop = 1;
            if (some == 0)
                break;
            bits = level_bits(cursor, some);
        }
        if (rows_seen(cursor) == 0 && !(bits.begins & 1))
            return fail(cursor, "its first level is inside a list");
        if (~(bits.begins | bits.element) & UINT64_MAX >> (WORD - some))
            return fail(cursor, "a list goes on with a level that is no element's");
        if (begin_lists(cursor, &bits, first + *elements) != 0)
            return -1;
        const int slots = __builtin_popcountll(bits.element);
        if (bits.value == bits.element) {
            memset(valid + *elements, 1, (size_t)slots);
        } else {
            uint8_t *out = valid + *elements;
            for (uint64_t rest = bits.element; rest; rest &= rest - 1)
                *out++ = bits.value >> __builtin_ctzll(rest) & 1;
        }
        *elements += slots;
        *count += __builtin_popcountll(bits.value);
        cursor->level += some;
        cursor->slots -= some;
    }
    return stop;
}

/* Begin lists at the zeros of a packed run of repetition levels, `slots` of it, the first of which is element `base`.
 * Returns how many were used; fewer where the list after the last one begins. */
FAST static int64_t scan_starts(Cursor *cursor, int64_t base, int64_t slots, int64_t rows) {
    Runs *reps = &cursor->reps;
    int64_t used = 0;
    int32_t *starts = (int32_t *)cursor->starts.bytes;
    int64_t begun = cursor->rows;
    while (used < slots) {
        const uint64_t bit = reps->bit + (uint64_t)used;
        const int shift = (int)(bit & 7);
        int64_t some = slots - used < 64 - shift ? slots - used : 64 - shift;
        uint64_t word = ~(load_some(reps->bytes + (bit >> 3), reps->at) >> shift);
        if (some < 64)
            word &= ((uint64_t)1 << some) - 1;
        const int full = begun + some > rows && begun + __builtin_popcountll(word) > rows;
        if (full) { /* find the list after the last one */
            uint64_t rest = word;
            for (int64_t skipped = begun; skipped < rows; skipped++)
                rest &= rest - 1;
            some = __builtin_ctzll(rest);
            word &= ((uint64_t)1 << some) - 1;
        }
        const int64_t first = base + used;
        while (word) {
            starts[begun++] = (int32_t)(first + __builtin_ctzll(word));
            word &= word - 1;
        }
        used += some;
        if (full)
            break;
    }
    cursor->rows = begun;
    reps->bit += (uint64_t)used;
    reps->left -= used;
    return used;
}

/* Take elements where a run of definition levels says that all are there. Returns 1 where the list after the last one
 * begins, 0 if that was not reached, -1 on an error. */
static int advance_full_lists(Cursor *cursor, int64_t rows, int64_t slots) {
    Runs *reps = &cursor->reps;
    const int64_t before = cursor->rows, elements = cursor->elements;
    int64_t done = 0;
    int stop = 0;
    if (slots > INT32_MAX - cursor->elements)
        return fail(cursor, TOO_MANY);
    cursor->starts.used = (size_t)cursor->rows * sizeof(int32_t);
    if (reserve(cursor, &cursor->starts, rows - cursor->rows < slots ? rows - cursor->rows : slots, sizeof(int32_t)) != 0)
        return -1;
    while (done < slots && !stop) {
        if (reps->left == 0 && runs_next(reps) != 0)
            return fail(cursor, LEVELS_END);
        const int64_t some = reps->left < slots - done ? reps->left : slots - done, base = cursor->elements + done;
        int64_t used = some;
        if (reps->packed) {
            used = scan_starts(cursor, base, some, rows);
        } else {
            if (reps->value == 0) { /* each is a list of its own */
                used = rows - cursor->rows < some ? rows - cursor->rows : some;
                for (int64_t index = 0; index < used; index++)
                    ((int32_t *)cursor->starts.bytes)[cursor->rows++] = (int32_t)(base + index);
            }
            reps->left -= used;
        }
        stop = used < some;
        done += used;
    }
    cursor->defs.left -= done;
    cursor->slots -= done;
    if (append_values(cursor, NULL, done, done) != 0 || append_valid_lists(cursor, cursor->rows - before) != 0)
        return -1;
    if (cursor->prefix)
        cut_lists(cursor, before, elements);
    return stop;
}

static int advance_lists(Cursor *cursor, int64_t rows) {
    uint8_t valid[BLOCK];
    while (cursor->slots > 0) {
        if (cursor->level == cursor->ahead) {
            const int64_t run = rows_seen(cursor) == 0
                ? 0 : runs_repeated(&cursor->defs, cursor->max_def, cursor->slots);
            if (run > 0) {
                const int stopped = advance_full_lists(cursor, rows - cursor->passed, run);
                if (stopped != 0)
                    return stopped < 0 ? -1 : 1;
                continue;
            }
            int64_t some = cursor->slots < BLOCK ? cursor->slots : BLOCK;
            if (rows_seen(cursor) == 0)
                some = 1; /* only the first list, so that the next ones can be read as a run */
            if (runs_read_bytes(&cursor->reps, cursor->rep, some, 1) != 0
                || runs_read_bytes(&cursor->defs, cursor->def, some, cursor->max_def) != 0)
                return fail(cursor, LEVELS_END);
            cursor->level = 0;
            cursor->ahead = (int)some;
        }
        const int64_t before = cursor->rows, first = cursor->elements;
        int64_t elements = 0, count = 0;
        const int stop = read_levels(cursor, rows, valid, &elements, &count);
        if (stop < 0)
            return -1;
        if (append_values(cursor, valid, elements, count) != 0)
            return -1;
        if (cursor->prefix)
            cut_lists(cursor, before, first);
        if (stop)
            return 1;
    }
    return 0;
}

/* Whether there are so many rows; else the page has ended. -1 after an error. */
static int advance_rows(Cursor *cursor, int64_t rows) {
    if (cursor->lists)
        return advance_lists(cursor, rows);
    return advance_flat(cursor, rows - rows_seen(cursor)) != 0 ? -1 : rows_seen(cursor) == rows;
}

#endif
