/* load_tables.c - the tables of a checkpoint's index as Python rows.
 *
 * Rows come by the ten thousand, so they are made as what the caller wants them to be (a
 * named tuple) without a call of Python for each. */
#include "py/load.h"

#include <stdbool.h>
#include <string.h>

struct table {
    PyObject *list;
    PyTypeObject *kind; /* tuple, or derived from it */
    Py_ssize_t columns;
    PyObject *row; /* the one being filled */
    Py_ssize_t at;
};

static bool begin(struct table *table, PyObject *kind, Py_ssize_t columns)
{
    if (!PyType_Check(kind) || !PyType_IsSubtype((PyTypeObject *)kind, &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "rows are tuples, or of a class derived from tuple");
        table->list = NULL;
        return false;
    }
    *table = (struct table){PyList_New(0), (PyTypeObject *)kind, columns, NULL, 0};
    return table->list != NULL;
}

/* As tuple.__new__ does it for derived classes: empty first, items afterwards. */
static void open_row(struct table *table)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot(table->kind, Py_tp_alloc);
    table->row = table->kind == &PyTuple_Type ? PyTuple_New(table->columns)
                                              : allocate(table->kind, table->columns);
    table->at = 0;
}

/* Takes the item; NULL is an exception, which closes the table. */
static void put(struct table *table, PyObject *item)
{
    if (!item || !table->row) {
        Py_XDECREF(item);
        Py_CLEAR(table->row);
    } else if (PyTuple_SetItem(table->row, table->at++, item) < 0) {
        Py_CLEAR(table->row);
    }
}

static void put_number(struct table *table, uint64_t number)
{
    put(table, PyLong_FromUnsignedLongLong(number));
}

static bool close_row(struct table *table)
{
    table->list = load_append(table->list, table->row);
    table->row = NULL;
    return table->list != NULL;
}

/* Mostly one text for all rows: made again only where it differs from the last. */
struct last_text {
    const char *text;
    size_t size;
    PyObject *object;
};

static PyObject *text_once(struct last_text *last, const char *text, size_t size)
{
    if (!last->object || last->size != size || memcmp(last->text, text, size) != 0) {
        Py_XDECREF(last->object);
        *last = (struct last_text){text, size, load_text_of(text, size)};
    }
    return last->object ? Py_NewRef(last->object) : NULL;
}

PyObject *load_storages(PyObject *self, PyObject *kind)
{
    const struct solo_ckpt_storage *rows;
    size_t count = solo_ckpt_storages(((struct load_checkpoint *)self)->ckpt, &rows);
    struct table table;
    struct last_text location = {0};
    bool fine = begin(&table, kind, 7);
    for (size_t i = 0; fine && i < count; i++) {
        open_row(&table);
        put(&table, load_text_of(rows[i].key, rows[i].key_bytes));
        put_number(&table, rows[i].dtype);
        put_number(&table, rows[i].bytes);
        put_number(&table, rows[i].offset);
        put_number(&table, rows[i].packed_bytes);
        put_number(&table, rows[i].crc);
        put(&table, text_once(&location, rows[i].location, rows[i].location_bytes));
        fine = close_row(&table);
    }
    Py_XDECREF(location.object);
    return table.list;
}

PyObject *load_counts(const uint64_t *values, uint32_t count)
{
    PyObject *tuple = PyTuple_New((Py_ssize_t)count);
    for (uint32_t i = 0; tuple && i < count; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(values[i]);
        if (!number || PyTuple_SetItem(tuple, (Py_ssize_t)i, number) < 0) {
            Py_CLEAR(tuple);
        }
    }
    return tuple;
}

/* 1: row-major over exactly its elements: the common case, which needs no strides. */
int load_is_contiguous(const struct solo_ckpt_tensor *row)
{
    uint64_t stride = 1;
    for (uint32_t i = row->dims; i-- > 0;) {
        if (row->sizes[i] != 1 && row->strides[i] != stride) {
            return 0;
        }
        stride *= row->sizes[i];
    }
    return 1;
}

PyObject *load_tensors(PyObject *self, PyObject *kind)
{
    const struct solo_ckpt_tensor *rows;
    size_t count = solo_ckpt_tensors(((struct load_checkpoint *)self)->ckpt, &rows);
    struct table table;
    bool fine = begin(&table, kind, 8);
    for (size_t i = 0; fine && i < count; i++) {
        open_row(&table);
        put_number(&table, rows[i].storage);
        put_number(&table, rows[i].dtype);
        put_number(&table, rows[i].first);
        put(&table, load_counts(rows[i].sizes, rows[i].dims));
        put(&table, load_counts(rows[i].strides, rows[i].dims));
        put_number(&table, rows[i].requires_grad);
        put(&table, PyLong_FromLong(load_is_contiguous(&rows[i])));
        put(&table, PyBool_FromLong(rows[i].metadata != SOLO_CKPT_NONE));
        fine = close_row(&table);
    }
    return table.list;
}

PyObject *load_names(PyObject *self, PyObject *kind)
{
    const struct solo_ckpt_name *rows;
    size_t count = solo_ckpt_names(((struct load_checkpoint *)self)->ckpt, &rows);
    struct table table;
    bool fine = begin(&table, kind, 3);
    for (size_t i = 0; fine && i < count; i++) {
        open_row(&table);
        put(&table, load_text_of(rows[i].text, rows[i].bytes));
        put_number(&table, rows[i].key_at);
        put_number(&table, rows[i].tensor);
        fine = close_row(&table);
    }
    return table.list;
}
