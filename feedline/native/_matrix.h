/* Columns of a row-major matrix of 4-byte values, laid in and taken out: a cache line of it holds values of 16 columns,
 * so these are copied together, for as many rows as a core's cache holds. */

#ifndef FEEDLINE_MATRIX_H
#define FEEDLINE_MATRIX_H

#define TILE 16 /* rows and columns that are copied together: a cache line of each column */
#define MATRIX_BYTES (1 << 20) /* of the matrix, whose rows are visited by one group of columns after the other */

typedef struct {
    uint32_t *values;
    Py_ssize_t rows, width;
} Matrix;

#if defined(__GNUC__) && (__GNUC__ >= 12 || defined(__clang__))
#define MATRIX_BLOCKS
typedef uint32_t Four __attribute__((vector_size(16)));
#define MIX(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)

/* Four values of four lines each become four of four columns. `from` and `to` are the first line's and its column's. */
static inline void matrix_block(const uint32_t *const from[4], uint32_t *const to[4]) {
    Four lines[4];
    for (int line = 0; line < 4; line++)
        memcpy(&lines[line], from[line], sizeof(Four));
    const Four low = MIX(lines[0], lines[1], 0, 4, 1, 5), high = MIX(lines[0], lines[1], 2, 6, 3, 7);
    const Four low2 = MIX(lines[2], lines[3], 0, 4, 1, 5), high2 = MIX(lines[2], lines[3], 2, 6, 3, 7);
    const Four columns[4] = {MIX(low, low2, 0, 1, 4, 5), MIX(low, low2, 2, 3, 6, 7), MIX(high, high2, 0, 1, 4, 5),
                             MIX(high, high2, 2, 3, 6, 7)};
    for (int column = 0; column < 4; column++)
        memcpy(to[column], &columns[column], sizeof(Four));
}

static inline int are_neighbours(const Py_ssize_t numbers[4]) {
    return numbers[1] - numbers[0] == 1 && numbers[2] - numbers[1] == 1 && numbers[3] - numbers[2] == 1;
}
#endif

/* Four rows of at most TILE columns, which `numbers` say. out: whether they are taken out of the matrix. */
static inline void matrix_copy_four(uint32_t *values, Py_ssize_t width, uint32_t *const *columns, Py_ssize_t row,
                                    const Py_ssize_t *numbers, int count, int out) {
    int index = 0;
#ifdef MATRIX_BLOCKS
    for (; index + 4 <= count && are_neighbours(numbers + index); index += 4) {
        uint32_t *const place = values + numbers[index];
        uint32_t *const rows[4] = {place, place + width, place + 2 * width, place + 3 * width};
        uint32_t *const own[4] = {columns[index] + row, columns[index + 1] + row, columns[index + 2] + row,
                                  columns[index + 3] + row};
        if (out)
            matrix_block((const uint32_t *const *)rows, own);
        else
            matrix_block((const uint32_t *const *)own, rows);
    }
#endif
    for (; index < count; index++)
        for (int next = 0; next < 4; next++) {
            if (out)
                columns[index][row + next] = values[next * width + numbers[index]];
            else
                values[next * width + numbers[index]] = columns[index][row + next];
        }
}

/* Rows [start, stop) of at most TILE columns. */
static void matrix_copy_rows(const Matrix *matrix, Py_ssize_t start, Py_ssize_t stop, uint32_t **columns,
                             const Py_ssize_t *numbers, int count, int out) {
    Py_ssize_t row = start;
    for (; row + 4 <= stop; row += 4)
        matrix_copy_four(matrix->values + row * matrix->width, matrix->width, columns, row, numbers, count, out);
    for (; row < stop; row++) {
        uint32_t *values = matrix->values + row * matrix->width;
        for (int index = 0; index < count; index++) {
            if (out)
                columns[index][row] = values[numbers[index]];
            else
                values[numbers[index]] = columns[index][row];
        }
    }
}

static void matrix_copy(const Matrix *matrix, Py_ssize_t count, uint32_t **columns, const Py_ssize_t *numbers, int out) {
    const Py_ssize_t fitting = MATRIX_BYTES / (4 * matrix->width) / TILE * TILE;
    const Py_ssize_t step = fitting < 4 * TILE ? 4 * TILE : fitting;
    for (Py_ssize_t start = 0; start < matrix->rows; start += step) {
        const Py_ssize_t stop = matrix->rows - start < step ? matrix->rows : start + step;
        for (Py_ssize_t first = 0; first < count; first += TILE) {
            const int some = count - first < TILE ? (int)(count - first) : TILE;
            matrix_copy_rows(matrix, start, stop, columns + first, numbers + first, some, out);
        }
    }
}

static int matrix_open(Matrix *matrix, Buffers *buffers, PyObject *object, Py_ssize_t width, int out) {
    if (width < 1 || check_size(width) != 0 || check_size(4 * width) != 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "a matrix has at least one column");
        return -1;
    }
    const Py_buffer *view = buffers_add(buffers, object, !out);
    if (view == NULL)
        return -1;
    matrix->values = view->buf;
    matrix->width = width;
    matrix->rows = view->len / (4 * width);
    return view->len == 4 * width * matrix->rows ? 0 : too_small("a matrix", view->len, 4 * width * matrix->rows);
}

static PyObject *matrix_columns(PyObject *args, int out) {
    PyObject *object, *numbers, *arrays, *result = NULL;
    Py_ssize_t width;
    Matrix matrix;
    Buffers buffers;
    if (!PyArg_ParseTuple(args, "OnO!O!", &object, &width, &PyTuple_Type, &numbers, &PyTuple_Type, &arrays))
        return NULL;
    const Py_ssize_t count = PyTuple_Size(arrays);
    if (PyTuple_Size(numbers) != count) {
        PyErr_SetString(PyExc_ValueError, "there is one number for each column");
        return NULL;
    }
    if (buffers_open(&buffers, count + 1) != 0)
        return NULL;
    uint32_t **columns = PyMem_Calloc((size_t)count + 1, sizeof(uint32_t *));
    Py_ssize_t *places = PyMem_Calloc((size_t)count + 1, sizeof(Py_ssize_t));
    if (columns == NULL || places == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    if (matrix_open(&matrix, &buffers, object, width, out) != 0)
        goto done;
    for (Py_ssize_t index = 0; index < count; index++) {
        const Py_buffer *view = buffers_add(&buffers, PyTuple_GetItem(arrays, index), out);
        if (view == NULL)
            goto done;
        places[index] = PyLong_AsSsize_t(PyTuple_GetItem(numbers, index));
        if (PyErr_Occurred())
            goto done;
        if (view->len != 4 * matrix.rows) {
            too_small("a column", view->len, 4 * matrix.rows);
            goto done;
        }
        if (places[index] < 0 || places[index] >= width) {
            PyErr_Format(PyExc_ValueError, "column %zd is not among the %zd of a matrix", places[index], width);
            goto done;
        }
        columns[index] = view->buf;
    }
    Py_BEGIN_ALLOW_THREADS
    matrix_copy(&matrix, count, columns, places, out);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
done:
    PyMem_Free(columns);
    PyMem_Free(places);
    buffers_close(&buffers);
    return result;
}

/* lay_columns(matrix, width, numbers, columns) */
static PyObject *lay_columns(PyObject *module, PyObject *args) {
    (void)module;
    return matrix_columns(args, 0);
}

/* take_columns(matrix, width, numbers, columns) */
static PyObject *take_columns(PyObject *module, PyObject *args) {
    (void)module;
    return matrix_columns(args, 1);
}

#endif
