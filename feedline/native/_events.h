/* Find the events before the times of rows, and choose those that rows see: the last ones, of those that meet
 * conditions.
 *
 * Part of _rows.c. The events of a row are a range of events in order of their time.
 */

#ifndef FEEDLINE_EVENTS_H
#define FEEDLINE_EVENTS_H

#define MOST_POOLS 32

typedef struct {
    const int64_t *starts, *stops, *at; /* of rows */
    const int64_t *known;               /* of events; NULL where all are known */
    const uint32_t *pools;              /* of events, as bits; NULL: all are in the first */
    const int64_t *lasts; /* of each pool, of rows */
    int pool_count;
    Py_ssize_t rows;
} Choice;

/* Write the events of a row, the last one first. Returns how many there are, or -1 where there is no room for one. */
static int64_t choose_backwards(const Choice *choice, Py_ssize_t row, int64_t low, int64_t high, int32_t *positions,
                                uint32_t *tags, int64_t room) {
    int64_t left[MOST_POOLS], count = 0;
    uint32_t open = 0;
    for (int pool = 0; pool < choice->pool_count; pool++) {
        left[pool] = choice->lasts[pool * choice->rows + row];
        open |= left[pool] > 0 ? 1u << pool : 0;
    }
    for (int64_t event = high - 1; event >= low && open != 0; event--) {
        if (choice->known != NULL && choice->known[event] > choice->at[row])
            continue;
        const uint32_t in = (choice->pools == NULL ? 1u : choice->pools[event]) & open;
        if (in == 0)
            continue;
        if (count == room)
            return -1;
        for (int pool = 0; pool < choice->pool_count; pool++)
            if (in >> pool & 1 && --left[pool] == 0)
                open &= ~(1u << pool);
        positions[count] = (int32_t)event;
        if (tags != NULL)
            tags[count] = in;
        count++;
    }
    return count;
}

static void reverse_events(int32_t *positions, uint32_t *tags, int64_t count) {
    for (int64_t first = 0, last = count - 1; first < last; first++, last--) {
        const int32_t position = positions[first];
        positions[first] = positions[last];
        positions[last] = position;
        if (tags != NULL) {
            const uint32_t tag = tags[first];
            tags[first] = tags[last];
            tags[last] = tag;
        }
    }
}

/* Returns how many events all rows see; -1 where there is no room for them. */
static int64_t choose_events(const Choice *choice, int64_t *offsets, int32_t *positions, uint32_t *tags, int64_t room) {
    const int plain = choice->known == NULL && choice->pools == NULL && choice->pool_count == 1;
    int64_t total = 0;
    offsets[0] = 0;
    for (Py_ssize_t row = 0; row < choice->rows; row++) {
        const int64_t low = choice->starts[row], stop = choice->stops[row], high = stop < low ? low : stop;
        int64_t count;
        if (plain) {
            count = high - low < choice->lasts[row] ? high - low : choice->lasts[row];
            count = count < 0 ? 0 : count;
            if (count > room - total)
                return -1;
            for (int64_t event = 0; event < count; event++)
                positions[total + event] = (int32_t)(high - count + event);
            if (tags != NULL)
                for (int64_t event = 0; event < count; event++)
                    tags[total + event] = 1;
        } else {
            uint32_t *own = tags == NULL ? NULL : tags + total;
            count = choose_backwards(choice, row, low, high, positions + total, own, room - total);
            if (count < 0)
                return -1;
            reverse_events(positions + total, own, count);
        }
        total += count;
        offsets[row + 1] = total;
    }
    return total;
}

/* last_events(rows, known, pools, lasts, offsets, positions, tags) -> events
 *
 * rows: int64 [3, rows], the first of its events, their end, and its time. known: int64 [events]; pools: uint32
 * [events]; lasts: int64 [pools, rows]. Out: int64 [rows + 1], int32 and uint32 [room]. known, pools and tags may be empty. */
static PyObject *last_events(PyObject *module, PyObject *args) {
    PyObject *objects[7];
    Buffers buffers;
    Py_buffer *views[7];
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOOOOO", &objects[0], &objects[1], &objects[2], &objects[3], &objects[4],
                          &objects[5], &objects[6]))
        return NULL;
    if (buffers_open(&buffers, 7) != 0)
        return NULL;
    for (int index = 0; index < 7; index++)
        if ((views[index] = buffers_add(&buffers, objects[index], index > 3)) == NULL)
            goto failed;
    const Py_ssize_t rows = views[0]->len / 24, pools = rows ? views[3]->len / 8 / rows : 1, room = views[5]->len / 4;
    const Py_ssize_t known = views[1]->len / 8, marked = views[2]->len / 4;
    if (pools < 1 || pools > MOST_POOLS || views[4]->len < (rows + 1) * 8 || (views[6]->len && views[6]->len / 4 < room)) {
        PyErr_SetString(PyExc_ValueError, "the arrays of rows, pools and their events do not fit each other");
        goto failed;
    }
    const int64_t *of_rows = views[0]->buf;
    const Choice choice = {
        .starts = of_rows, .stops = of_rows + rows, .at = of_rows + 2 * rows, .known = known ? views[1]->buf : NULL,
        .pools = marked ? views[2]->buf : NULL, .lasts = views[3]->buf, .pool_count = (int)pools,
        .rows = rows,
    };
    int64_t total = 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t row = 0; row < rows && total == 0; row++)
        if (choice.starts[row] < 0 || choice.stops[row] > INT32_MAX || (known && choice.stops[row] > known) ||
            (marked && choice.stops[row] > marked))
            total = -2;
    if (total == 0)
        total = choose_events(&choice, views[4]->buf, views[5]->buf, views[6]->len ? views[6]->buf : NULL, room);
    Py_END_ALLOW_THREADS
    if (total < 0) {
        PyErr_SetString(PyExc_ValueError, total == -1 ? "there is no room for the events of all rows"
                                                      : "a row's events are outside of those that there are");
        goto failed;
    }
    buffers_close(&buffers);
    return PyLong_FromLongLong(total);
failed:
    buffers_close(&buffers);
    return NULL;
}

/* Of each row the first of values [low, high), which ascend, that is not below a bound; high where all are. */
static void bisect_rows(const int64_t *values, const int64_t *low, const int64_t *high, const int64_t *bounds,
                        int64_t *found, Py_ssize_t rows) {
    for (Py_ssize_t row = 0; row < rows; row++) {
        int64_t first = low[row], stop = high[row];
        while (first < stop) {
            const int64_t middle = first + (stop - first) / 2;
            if (values[middle] < bounds[row])
                first = middle + 1;
            else
                stop = middle;
        }
        found[row] = first;
    }
}

/* bisect(values, low, high, bounds, found): int64 [values], and int64 [rows] each, of which found is written. */
static PyObject *bisect(PyObject *module, PyObject *args) {
    PyObject *objects[5];
    Buffers buffers;
    Py_buffer *views[5];
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOOO", &objects[0], &objects[1], &objects[2], &objects[3], &objects[4]))
        return NULL;
    if (buffers_open(&buffers, 5) != 0)
        return NULL;
    int failed = 0;
    for (int index = 0; index < 5 && !failed; index++)
        failed = (views[index] = buffers_add(&buffers, objects[index], index == 4)) == NULL;
    if (!failed) {
        const Py_ssize_t rows = views[4]->len / 8, values = views[0]->len / 8;
        const int64_t *low = views[1]->buf, *high = views[2]->buf;
        failed = views[1]->len != rows * 8 || views[2]->len != rows * 8 || views[3]->len != rows * 8;
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t row = 0; !failed && row < rows; row++)
            failed = low[row] < high[row] && (low[row] < 0 || high[row] > values);
        if (!failed)
            bisect_rows(views[0]->buf, low, high, views[3]->buf, views[4]->buf, rows);
        Py_END_ALLOW_THREADS
        if (failed)
            PyErr_SetString(PyExc_ValueError, "ranges of values and bounds do not fit each other");
    }
    buffers_close(&buffers);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

#endif
