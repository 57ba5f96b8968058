/* Write a batch into a slot: all its sections in one call, with the interpreter's lock released.
 *
 * Part of _rows.c. What is copied where is listed while the lock is held, after every place, row and offset was checked
 * against the sizes of the slot and of its sources.
 */

#ifndef FEEDLINE_SLOTS_H
#define FEEDLINE_SLOTS_H

/* What is written at a place: bytes from elsewhere, or one byte again and again; or the ends and lengths of lists; or
 * rows, or lists, that are gathered from parts; or the values that codes stand for. */
typedef struct {
    char *to;
    const char *from; /* NULL: `value` again and again; of lists that are gathered, their offsets in the new order */
    Py_ssize_t count; /* of bytes, or of lists; the bytes of a row, or of a value of lists, that are gathered */
    int64_t value;    /* or what is added to the ends of lists */
    int32_t *lengths; /* of lists; else NULL */
    uintptr_t *bases; /* of rows that are gathered, the addresses of their parts, of lists of offsets and values; or NULL */
    Rows rows;
    Coded coded; /* with a target, unless there are none */
} Move;

/* A slot, and what will be written into it once the lock is released. */
typedef struct {
    Buffers buffers;
    Py_buffer *target;
    Move *moves;
    Py_ssize_t used;
} Slot;

/* The address of items [first, first + count) of `size` bytes in the section of a slot that begins at `start`. */
static char *section(const Slot *slot, Py_ssize_t start, Py_ssize_t first, Py_ssize_t count, Py_ssize_t size) {
    const Py_ssize_t bytes = slot->target->len;
    if (start < 0 || start > bytes || first < 0 || count < 0 || size < 0
        || (size > 0 && (first > (bytes - start) / size || count > (bytes - start) / size - first))) {
        PyErr_SetString(PyExc_ValueError, "a section lies outside its slot");
        return NULL;
    }
    return (char *)slot->target->buf + start + first * size;
}

/* Gather rows, or lists if `ends` are their offsets in the new order, of `size` bytes each, or each value. */
static int gather_rows(Slot *slot, const Rows *rows, PyObject *source, PyObject *offsets, const int64_t *ends,
                       char *to, Py_ssize_t size) {
    Move *move = &slot->moves[slot->used++];
    *move = (Move){.to = to, .from = (const char *)ends, .count = size, .rows = *rows};
    move->bases = PyMem_Calloc((size_t)(2 * rows->parts + 1), sizeof(uintptr_t));
    if (move->bases == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (ends == NULL)
        return addresses(&slot->buffers, source, rows, size, move->bases);
    return addresses(&slot->buffers, offsets, rows, (Py_ssize_t)sizeof(int64_t), move->bases) != 0
        ? -1
        : addresses(&slot->buffers, source, rows, 0, move->bases + rows->parts);
}

/* Write rows [start, stop) of a source, of `size` bytes each, to the rows of a section from `row` on. rows: those, of
 * the parts that the source then is a tuple of; NULL if they are copied. */
static int move_rows(Slot *slot, const Rows *rows, PyObject *source, Py_ssize_t place, Py_ssize_t size,
                     Py_ssize_t start, Py_ssize_t stop, Py_ssize_t row) {
    char *to = check_size(size) != 0 ? NULL : section(slot, place, row, stop - start, size);
    if (to == NULL)
        return -1;
    if (rows != NULL)
        return gather_rows(slot, rows, source, NULL, NULL, to, size);
    Py_buffer *from = buffers_add(&slot->buffers, source, 0);
    if (from == NULL)
        return -1;
    if (size > 0 && stop > from->len / size)
        return too_small("a source of a slot", from->len, (Py_ssize_t)((size_t)stop * (size_t)size));
    slot->moves[slot->used++] = (Move){.to = to, .from = (const char *)from->buf + start * size, .count = (stop - start) * size};
    return 0;
}

static int64_t border_at(const char *borders, Py_ssize_t index) {
    int64_t border;
    memcpy(&border, borders + 8 * index, 8);
    return border;
}

/* Write the values [first, last) of lists, of `size` bytes each, which are codes and a table, to a section. */
static int move_coded(Slot *slot, PyObject *source, Py_ssize_t place, Py_ssize_t size, int64_t first, int64_t last,
                      Py_ssize_t filled) {
    PyObject *codes, *table;
    Coded coded = {.step = 1};
    Py_buffer *stored = NULL;
    char *to = section(slot, place, filled, last - first, size);
    if (to == NULL || !PyArg_ParseTuple(source, "OO", &codes, &table)
        || codes_open(&coded.codes, &slot->buffers, codes) != 0
        || (stored = buffers_add(&slot->buffers, table, 0)) == NULL)
        return -1;
    const Py_ssize_t width = coded.codes.narrow ? 2 : 4;
    if (last > coded.codes.count)
        return too_small("the codes of lists", coded.codes.count * width, (Py_ssize_t)((size_t)last * (size_t)width));
    if (!table_open(&coded, stored, size) || (uintptr_t)to % (size_t)size != 0) {
        PyErr_SetString(PyExc_ValueError, "the values of codes have another size, or their section is not aligned");
        return -1;
    }
    coded.target = to;
    coded.codes.numbers = (const char *)coded.codes.numbers + first * width;
    coded.codes.count = (Py_ssize_t)(last - first);
    slot->moves[slot->used++] = (Move){.coded = coded};
    return 0;
}

/* The values, or weights, of lists. parts: the offsets of the parts of lists that are gathered, whose offsets in the new
 * order are `border`; first, last: of the values that are copied. */
static int move_values(Slot *slot, const Rows *rows, PyObject *source, PyObject *parts, const char *border,
                       Py_ssize_t place, Py_ssize_t size, int64_t first, int64_t last, Py_ssize_t filled) {
    if (rows == NULL && PyTuple_Check(source))
        return move_coded(slot, source, place, size, first, last, filled);
    if (rows == NULL)
        return move_rows(slot, NULL, source, place, size, first, last, filled);
    char *to = check_size(size) != 0 ? NULL : section(slot, place, filled, last - first, size);
    if (to == NULL || check_borders((const int64_t *)border, rows->rows, 0, 0) != 0)
        return -1;
    return gather_rows(slot, rows, source, parts, (const int64_t *)border, to, size);
}

/* A list feature of some rows: `filled` values are in the slot before them. offsets: of the rows; parts: of the parts of
 * rows that are gathered. Returns how many values are then; -1: an error. */
static Py_ssize_t move_lists(Slot *slot, const Rows *rows, PyObject *place, PyObject *offsets, PyObject *parts,
                             PyObject *values, PyObject *weights, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t row,
                             Py_ssize_t filled) {
    Py_ssize_t lengths, ends, first_value, size, first_weight;
    if (!PyArg_ParseTuple(place, "nnnnn", &lengths, &ends, &first_value, &size, &first_weight))
        return -1;
    Py_buffer *borders = buffers_add(&slot->buffers, offsets, 0);
    if (borders == NULL)
        return -1;
    if (stop >= borders->len / 8)
        return too_small("the offsets of lists", borders->len, (Py_ssize_t)(8 * ((size_t)stop + 1)));
    const char *border = (const char *)borders->buf + 8 * start; /* blocks that were sent lie at any address */
    const int64_t first = border_at(border, 0), last = border_at(border, stop - start);
    char *to_lengths = section(slot, lengths, row, stop - start, 4);
    char *to_ends = to_lengths == NULL ? NULL : section(slot, ends, row, stop - start + 1, 8);
    if (to_ends == NULL)
        return -1;
    if (first < 0 || last < first || (uintptr_t)to_ends % 8 != 0 || (uintptr_t)to_lengths % 4 != 0
        || (rows != NULL && (uintptr_t)border % 8 != 0)) {
        PyErr_SetString(PyExc_ValueError, "the offsets of lists fall, or a section is not aligned");
        return -1;
    }
    slot->moves[slot->used++] = (Move){.to = to_ends + 8, .from = border, .count = stop - start,
                                       .value = filled - first, .lengths = (int32_t *)to_lengths};
    if (move_values(slot, rows, values, parts, border, first_value, size, first, last, filled) != 0)
        return -1;
    if (first_weight >= 0
        && move_values(slot, rows, weights, parts, border, first_weight, 4, first, last, filled) != 0)
        return -1;
    return filled + (last - first);
}

/* The rows [start, stop) of a piece that are gathered: where they are, and the offsets of their lists in that order. */
static int piece_rows(Slot *slot, PyObject *order, Py_ssize_t start, Py_ssize_t stop, Rows *rows, PyObject **offsets) {
    PyObject *index, *part, *starts;
    if (!PyArg_ParseTuple(order, "OOOO!", &index, &part, &starts, &PyTuple_Type, offsets))
        return -1;
    const Py_ssize_t parts = PyObject_Length(starts);
    if (parts < 0 || rows_open(rows, &slot->buffers, index, part, starts, parts, start, stop) != 0)
        return -1;
    return 0;
}

/* Rows [start, stop) of one source, at the rows of a part from `row` on. filled: the values of each list feature. */
static int move_piece(Slot *slot, PyObject *places, PyObject *piece, Py_ssize_t row, Py_ssize_t *filled) {
    PyObject *dense, *labels, *ids, *values, *weights, *offsets, *lists, *order = NULL, *parts = NULL;
    Py_ssize_t start, stop, dense_at, dense_size, labels_at, labels_size, ids_at, valid_at, all;
    int is_valid;
    Rows gathered, *rows = NULL;
    if (!PyArg_ParseTuple(places, "nnnnnnnO!", &dense_at, &dense_size, &labels_at, &labels_size, &ids_at, &valid_at,
                          &all, &PyTuple_Type, &lists)
        || !PyArg_ParseTuple(piece, "nnpOOO!O!O!O!|O!", &start, &stop, &is_valid, &dense, &labels, &PyTuple_Type, &ids,
                             &PyTuple_Type, &values, &PyTuple_Type, &weights, &PyTuple_Type, &offsets, &PyTuple_Type,
                             &order))
        return -1;
    const Py_ssize_t features = PyTuple_Size(lists), columns = PyTuple_Size(ids);
    if (order != NULL) {
        parts = offsets;
        rows = &gathered;
        if (piece_rows(slot, order, start, stop, rows, &offsets) != 0)
            return -1;
    }
    if (start < 0 || stop < start || stop - start > all - row || PyTuple_Size(values) != features
        || PyTuple_Size(weights) != features || PyTuple_Size(offsets) != features
        || (parts != NULL && PyTuple_Size(parts) != features)) {
        PyErr_SetString(PyExc_ValueError, "the rows of a slot, or its features, are not those of its sources");
        return -1;
    }
    if (move_rows(slot, rows, dense, dense_at, dense_size, start, stop, row) != 0
        || move_rows(slot, rows, labels, labels_at, labels_size, start, stop, row) != 0)
        return -1;
    for (Py_ssize_t column = 0; column < columns; column++)
        if (move_rows(slot, rows, PyTuple_GetItem(ids, column), ids_at, 8, start, stop, column * all + row) != 0)
            return -1;
    for (Py_ssize_t feature = 0; feature < features; feature++) {
        filled[feature] =
            move_lists(slot, rows, PyTuple_GetItem(lists, feature), PyTuple_GetItem(offsets, feature),
                       parts == NULL ? NULL : PyTuple_GetItem(parts, feature), PyTuple_GetItem(values, feature),
                       PyTuple_GetItem(weights, feature), start, stop, row, filled[feature]);
        if (filled[feature] < 0)
            return -1;
    }
    if (valid_at >= 0) {
        char *valid = section(slot, valid_at, row, stop - start, 1);
        if (valid == NULL)
            return -1;
        slot->moves[slot->used++] = (Move){.to = valid, .count = stop - start, .value = is_valid};
    }
    return 0;
}

/* The first of a list feature's offsets: 0. */
static int begin_list(Slot *slot, PyObject *place) {
    Py_ssize_t lengths, ends, first_value, size, first_weight;
    if (!PyArg_ParseTuple(place, "nnnnn", &lengths, &ends, &first_value, &size, &first_weight))
        return -1;
    char *to = section(slot, ends, 0, 1, 8);
    if (to == NULL)
        return -1;
    slot->moves[slot->used++] = (Move){.to = to, .count = 8};
    return 0;
}

/* All pieces of a part, laid end to end: places and pieces as in rows.py. */
static int move_part(Slot *slot, PyObject *part) {
    PyObject *places, *pieces;
    Py_ssize_t start, stop, row = 0;
    if (!PyArg_ParseTuple(part, "O!O!", &PyTuple_Type, &places, &PyList_Type, &pieces))
        return -1;
    PyObject *lists = PyTuple_Size(places) == 8 ? PyTuple_GetItem(places, 7) : NULL;
    if (lists == NULL || !PyTuple_Check(lists)) {
        PyErr_SetString(PyExc_ValueError, "the places of a part are seven numbers and those of its lists");
        return -1;
    }
    Py_ssize_t *filled = PyMem_Calloc((size_t)PyTuple_Size(lists) + 1, sizeof(Py_ssize_t));
    int failed = filled == NULL;
    if (failed)
        PyErr_NoMemory();
    for (Py_ssize_t index = 0; index < PyTuple_Size(lists) && !failed; index++)
        failed = begin_list(slot, PyTuple_GetItem(lists, index)) != 0;
    for (Py_ssize_t index = 0; index < PyList_Size(pieces) && !failed; index++) {
        PyObject *piece = PyList_GetItem(pieces, index);
        failed = move_piece(slot, places, piece, row, filled) != 0;
        if (!failed) {
            start = PyLong_AsSsize_t(PyTuple_GetItem(piece, 0));
            stop = PyLong_AsSsize_t(PyTuple_GetItem(piece, 1));
            row += stop - start;
        }
    }
    PyMem_Free(filled);
    if (!failed && row != PyLong_AsSsize_t(PyTuple_GetItem(places, 6))) {
        PyErr_SetString(PyExc_ValueError, "the pieces of a slot have fewer rows than the slot");
        return -1;
    }
    return failed ? -1 : 0;
}

/* Returns whether all codes are in range. */
static int run_moves(const Slot *slot) {
    for (Py_ssize_t index = 0; index < slot->used; index++) {
        Move *move = &slot->moves[index];
        if (move->coded.target != NULL) {
            if (!gather_coded(&move->coded))
                return 0;
        } else if (move->bases != NULL && move->from != NULL) {
            gather_ragged(move->to, (size_t)move->count, (const int64_t *)move->from, move->bases,
                          move->bases + move->rows.parts, &move->rows);
        } else if (move->bases != NULL) {
            gather_column(move->to, (size_t)move->count, move->bases, &move->rows);
        } else if (move->lengths != NULL) {
            int64_t *ends = (int64_t *)move->to;
            for (Py_ssize_t row = 0; row < move->count; row++) {
                const int64_t end = border_at(move->from, row + 1);
                ends[row] = (int64_t)((uint64_t)end + (uint64_t)move->value);
                move->lengths[row] = (int32_t)distance(border_at(move->from, row), end);
            }
        } else if (move->from != NULL) {
            memcpy(move->to, move->from, (size_t)move->count);
        } else {
            memset(move->to, (int)move->value, (size_t)move->count);
        }
    }
    return 1;
}

/* How many buffers or moves there may be of a tuple: twice what it, and the tuples in it, hold. */
static Py_ssize_t needs_of(PyObject *tuple, int depth) {
    Py_ssize_t needs = 4 + 2 * PyTuple_Size(tuple);
    for (Py_ssize_t index = 0; depth > 0 && index < PyTuple_Size(tuple); index++)
        if (PyTuple_Check(PyTuple_GetItem(tuple, index)))
            needs += needs_of(PyTuple_GetItem(tuple, index), depth - 1);
    return needs;
}

/* Room for a header, gaps, all pieces of all parts, and copies. */
static int slot_open(Slot *slot, PyObject *gaps, PyObject *parts, Py_ssize_t copies) {
    Py_ssize_t room = 4 + PyTuple_Size(gaps) + copies;
    for (Py_ssize_t index = 0; index < PyList_Size(parts); index++) {
        PyObject *part = PyList_GetItem(parts, index);
        PyObject *pieces = PyTuple_Check(part) && PyTuple_Size(part) == 2 ? PyTuple_GetItem(part, 1) : NULL;
        if (pieces == NULL || !PyList_Check(pieces)) {
            PyErr_SetString(PyExc_ValueError, "a part of a slot is its places and a list of pieces");
            return -1;
        }
        for (Py_ssize_t piece = -1; piece < PyList_Size(pieces); piece++) {
            PyObject *tuple = piece < 0 ? PyTuple_GetItem(part, 0) : PyList_GetItem(pieces, piece);
            if (!PyTuple_Check(tuple)) {
                PyErr_SetString(PyExc_ValueError, "the places and the pieces of a slot are tuples");
                return -1;
            }
            room += needs_of(tuple, 3);
        }
    }
    slot->moves = PyMem_Calloc((size_t)room, sizeof(Move));
    if (slot->moves == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return buffers_open(&slot->buffers, room);
}

// Of slots: smaller ones are written without releasing the interpreter's lock.
enum { KEPT_BYTES = 64 * 1024 };

static void slot_close(Slot *slot) {
    for (Py_ssize_t index = 0; index < slot->used; index++)
        PyMem_Free(slot->moves[index].bases);
    PyMem_Free(slot->moves);
    buffers_close(&slot->buffers);
}

/* List the bytes of a buffer, at the place that is given with it. */
static int move_copy(Slot *slot, PyObject *copy) {
    Py_ssize_t place;
    PyObject *source;
    if (!PyTuple_Check(copy) || !PyArg_ParseTuple(copy, "nO", &place, &source))
        return -1;
    const Py_buffer *from = buffers_add(&slot->buffers, source, 0);
    char *to = from == NULL ? NULL : section(slot, place, 0, from->len, 1);
    if (to == NULL)
        return -1;
    slot->moves[slot->used++] = (Move){.to = to, .from = from->buf, .count = from->len};
    return 0;
}

/* List all that is written into a slot; `slot_close` it, also after an error. */
static int slot_list(Slot *slot, PyObject *target, PyObject *header, PyObject *gaps, PyObject *parts, PyObject *copies) {
    if (slot_open(slot, gaps, parts, PyList_Size(copies)) != 0)
        return -1;
    slot->target = buffers_add(&slot->buffers, target, 1);
    Py_buffer *words = slot->target == NULL ? NULL : buffers_add(&slot->buffers, header, 0);
    char *to = words == NULL ? NULL : section(slot, 0, 0, words->len, 1);
    if (to == NULL)
        return -1;
    slot->moves[slot->used++] = (Move){.to = to, .from = words->buf, .count = words->len};
    for (Py_ssize_t index = 0; index < PyTuple_Size(gaps); index++) {
        Py_ssize_t start, stop;
        if (!PyArg_ParseTuple(PyTuple_GetItem(gaps, index), "nn", &start, &stop)
            || (to = section(slot, start, 0, start < 0 || stop < start ? -1 : stop - start, 1)) == NULL)
            return -1;
        slot->moves[slot->used++] = (Move){.to = to, .count = stop - start};
    }
    for (Py_ssize_t index = 0; index < PyList_Size(parts); index++)
        if (move_part(slot, PyList_GetItem(parts, index)) != 0)
            return -1;
    for (Py_ssize_t index = 0; index < PyList_Size(copies); index++)
        if (move_copy(slot, PyList_GetItem(copies, index)) != 0)
            return -1;
    return 0;
}

/* write_slot(target, header, gaps, parts, copies): see rows.py. */
static PyObject *write_slot(PyObject *module, PyObject *args) {
    PyObject *target, *header, *gaps, *parts, *copies, *result = NULL;
    Slot slot = {0};
    (void)module;
    if (!PyArg_ParseTuple(args, "OOO!O!O!", &target, &header, &PyTuple_Type, &gaps, &PyList_Type, &parts, &PyList_Type,
                          &copies))
        return NULL;
    if (slot_list(&slot, target, header, gaps, parts, copies) != 0)
        goto done;
    PyThreadState *thread = slot.target->len > KEPT_BYTES ? PyEval_SaveThread() : NULL;
    int valid = run_moves(&slot);
    if (thread != NULL)
        PyEval_RestoreThread(thread);
    if (valid)
        result = Py_NewRef(Py_None);
    else
        PyErr_SetString(PyExc_ValueError, "a code of a slot's lists is out of range");
done:
    slot_close(&slot);
    return result;
}

#endif
