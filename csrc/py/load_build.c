/* load_build.c - the inert values of a checkpoint to Python objects.
 *
 * Containers, numbers and text are made here. Whatever has a name in the file goes to the
 * caller's callbacks, which know what little may be made of it. */
#include "py/load.h"

#define DEPTH_MAX    260 /* the judge allows fewer; cycles through tuples end here */
#define SHARED_BYTES 32u /* texts from here on are made once however often they are used */

struct build {
    const struct solo_ckpt *ckpt;
    PyObject *tensors; /* list */
    PyObject *storage; /* (row, first, count) -> object; count -1: all of it */
    PyObject *resolve; /* (name) -> object */
    PyObject *call;    /* (name, arguments, created) -> object */
    PyObject *state;   /* (object, name, state) */
    PyObject *made;    /* {value: object} */
    int depth;
};

static PyObject *make(struct build *build, uint64_t value);

static PyObject *name_of(const struct build *build, uint64_t function)
{
    struct solo_ckpt_value value;
    solo_ckpt_value_get(build->ckpt, function, &value);
    return PyUnicode_DecodeUTF8(value.bytes, (Py_ssize_t)value.size, "replace");
}

/* int.from_bytes(bytes, "little", signed=True) */
static PyObject *make_long(const struct solo_ckpt_value *value)
{
    PyObject *function = PyObject_GetAttrString((PyObject *)&PyLong_Type, "from_bytes");
    PyObject *arguments = Py_BuildValue("(y#s)", value->bytes, (Py_ssize_t)value->size, "little");
    PyObject *keywords = Py_BuildValue("{sO}", "signed", Py_True);
    PyObject *number =
        function && arguments && keywords ? PyObject_Call(function, arguments, keywords) : NULL;
    Py_XDECREF(function);
    Py_XDECREF(arguments);
    Py_XDECREF(keywords);
    return number;
}

static PyObject *make_text(const struct solo_ckpt_value *value)
{
    const char *bytes = value->bytes;
    Py_ssize_t size = (Py_ssize_t)value->size;
    switch (value->type) {
    case SOLO_CKPT_STR:
        return PyUnicode_DecodeUTF8(bytes, size, "surrogatepass");
    case SOLO_CKPT_OLD_STR: {
        PyObject *text = PyUnicode_DecodeUTF8(bytes, size, NULL);
        if (!text && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
            PyErr_Clear(); /* Python 2's str may have been bytes */
            text = PyUnicode_DecodeLatin1(bytes, size, NULL);
        }
        return text;
    }
    case SOLO_CKPT_BYTEARRAY:
        return PyByteArray_FromStringAndSize(bytes, size);
    case SOLO_CKPT_LONG:
        return make_long(value);
    default:
        return PyBytes_FromStringAndSize(bytes, size);
    }
}

/* Remembers what a value became, so that what is shared in the file stays shared. */
static int keep(struct build *build, uint64_t value, PyObject *object)
{
    PyObject *key = PyLong_FromUnsignedLongLong(value);
    int rc = key ? PyDict_SetItem(build->made, key, object) : -1;
    Py_XDECREF(key);
    return rc;
}

static PyObject *kept(struct build *build, uint64_t value)
{
    PyObject *key = PyLong_FromUnsignedLongLong(value);
    PyObject *object = key ? PyDict_GetItemWithError(build->made, key) : NULL;
    Py_XDECREF(key);
    Py_XINCREF(object);
    return object;
}

static int add_one(struct build *build, PyObject *object, enum solo_ckpt_type type, uint64_t item)
{
    PyObject *made = make(build, item);
    if (!made) {
        return -1;
    }
    int rc;
    if (type == SOLO_CKPT_LIST) {
        rc = PyList_Append(object, made);
    } else if (type == SOLO_CKPT_CALL) {
        PyObject *result = PyObject_CallMethod(object, "append", "O", made);
        rc = result ? 0 : -1;
        Py_XDECREF(result);
    } else {
        rc = PySet_Add(object, made);
    }
    Py_DECREF(made);
    return rc;
}

static int add_pair(struct build *build, PyObject *object, uint64_t key_value, uint64_t item)
{
    PyObject *key = make(build, key_value);
    PyObject *made = key ? make(build, item) : NULL;
    int rc = made ? PyObject_SetItem(object, key, made) : -1;
    Py_XDECREF(key);
    Py_XDECREF(made);
    return rc;
}

static int fill(struct build *build, uint64_t value, PyObject *object, enum solo_ckpt_type type,
                int keyed)
{
    uint64_t cursor = 0;
    const uint64_t *items;
    for (size_t count; (count = solo_ckpt_items(build->ckpt, value, &cursor, &items)) > 0;) {
        for (size_t i = 0; i < count; i += keyed ? 2 : 1) {
            int rc = keyed ? add_pair(build, object, items[i], items[i + 1])
                           : add_one(build, object, type, items[i]);
            if (rc < 0) {
                return -1;
            }
        }
    }
    return 0;
}

static PyObject *make_tuple(struct build *build, uint64_t value)
{
    uint64_t cursor = 0;
    const uint64_t *items = NULL;
    size_t count = solo_ckpt_items(build->ckpt, value, &cursor, &items);
    PyObject *tuple = PyTuple_New((Py_ssize_t)count);
    for (size_t i = 0; tuple && i < count; i++) {
        PyObject *item = make(build, items[i]);
        if (!item || PyTuple_SetItem(tuple, (Py_ssize_t)i, item) < 0) {
            Py_CLEAR(tuple);
        }
    }
    if (tuple && count && keep(build, value, tuple) < 0) {
        Py_CLEAR(tuple);
    }
    return tuple;
}

static PyObject *make_container(struct build *build, uint64_t value, enum solo_ckpt_type type)
{
    PyObject *object = type == SOLO_CKPT_LIST   ? PyList_New(0)
                       : type == SOLO_CKPT_DICT ? PyDict_New()
                                                : PySet_New(NULL);
    if (object && (keep(build, value, object) < 0 ||
                   fill(build, value, object, type, type == SOLO_CKPT_DICT) < 0)) {
        Py_CLEAR(object);
    }
    if (object && type == SOLO_CKPT_FROZENSET) {
        PyObject *frozen = PyFrozenSet_New(object);
        Py_DECREF(object);
        object = frozen;
        if (object && keep(build, value, object) < 0) {
            Py_CLEAR(object);
        }
    }
    return object;
}

static int give_state(struct build *build, PyObject *object, PyObject *name, uint64_t state)
{
    if (state == SOLO_CKPT_NONE) {
        return 0;
    }
    PyObject *made = make(build, state);
    PyObject *result =
        made ? PyObject_CallFunctionObjArgs(build->state, object, name, made, NULL) : NULL;
    Py_XDECREF(made);
    Py_XDECREF(result);
    return result ? 0 : -1;
}

static PyObject *make_call(struct build *build, uint64_t value, const struct solo_ckpt_value *call)
{
    PyObject *name = name_of(build, call->function);
    PyObject *arguments = name ? make(build, call->arguments) : NULL;
    PyObject *object = arguments
                           ? PyObject_CallFunctionObjArgs(build->call, name, arguments,
                                                          call->created ? Py_True : Py_False, NULL)
                           : NULL;
    if (object && (keep(build, value, object) < 0 ||
                   fill(build, value, object, SOLO_CKPT_CALL, call->keyed) < 0 ||
                   give_state(build, object, name, call->state) < 0)) {
        Py_CLEAR(object);
    }
    Py_XDECREF(name);
    Py_XDECREF(arguments);
    return object;
}

static PyObject *make_named(struct build *build, uint64_t value)
{
    PyObject *name = name_of(build, value);
    PyObject *object = name ? PyObject_CallFunctionObjArgs(build->resolve, name, NULL) : NULL;
    Py_XDECREF(name);
    return object;
}

static PyObject *make_row(struct build *build, const struct solo_ckpt_value *value)
{
    if (value->type == SOLO_CKPT_STORAGE) {
        long long count = value->count == SOLO_CKPT_NONE ? -1 : (long long)value->count;
        return PyObject_CallFunction(build->storage, "LLL", (long long)value->integer,
                                     (long long)value->first, count);
    }
    PyObject *tensor = PyList_GetItem(build->tensors, (Py_ssize_t)value->integer);
    Py_XINCREF(tensor);
    return tensor;
}

static PyObject *make_shared(struct build *build, uint64_t value, const struct solo_ckpt_value *is)
{
    PyObject *object = kept(build, value);
    if (object || PyErr_Occurred()) {
        return object;
    }
    switch (is->type) {
    case SOLO_CKPT_TUPLE:
        return make_tuple(build, value);
    case SOLO_CKPT_CALL:
        return make_call(build, value, is);
    case SOLO_CKPT_LIST:
    case SOLO_CKPT_DICT:
    case SOLO_CKPT_SET:
    case SOLO_CKPT_FROZENSET:
        return make_container(build, value, is->type);
    default:
        object = make_text(is);
        if (object && keep(build, value, object) < 0) {
            Py_CLEAR(object);
        }
        return object;
    }
}

static PyObject *make(struct build *build, uint64_t value)
{
    struct solo_ckpt_value is;
    solo_ckpt_value_get(build->ckpt, value, &is);
    switch (is.type) {
    case SOLO_CKPT_NIL:
        return Py_NewRef(Py_None);
    case SOLO_CKPT_FALSE:
    case SOLO_CKPT_TRUE:
        return PyBool_FromLong(is.type == SOLO_CKPT_TRUE);
    case SOLO_CKPT_INT:
        return PyLong_FromLongLong(is.integer);
    case SOLO_CKPT_FLOAT:
        return PyFloat_FromDouble(is.number);
    case SOLO_CKPT_GLOBAL:
        return make_named(build, value);
    case SOLO_CKPT_TENSOR:
    case SOLO_CKPT_STORAGE:
        return make_row(build, &is);
    default:
        break;
    }
    if (is.type < SOLO_CKPT_TUPLE && is.size < SHARED_BYTES && is.type != SOLO_CKPT_BYTEARRAY) {
        return make_text(&is);
    }
    if (build->depth >= DEPTH_MAX) {
        PyErr_SetString(PyExc_RecursionError, "the object in the checkpoint contains itself");
        return NULL;
    }
    build->depth++;
    PyObject *object = make_shared(build, value, &is);
    build->depth--;
    return object;
}

PyObject *load_build(PyObject *self, PyObject *arguments)
{
    struct load_checkpoint *checkpoint = load_checkpoint_of(self);
    struct build build = {0};
    if (!checkpoint ||
        !PyArg_ParseTuple(arguments, "O!OOOO:build", &PyList_Type, &build.tensors, &build.storage,
                          &build.resolve, &build.call, &build.state)) {
        return NULL;
    }
    build.ckpt = checkpoint->ckpt;
    uint64_t root = solo_ckpt_root(build.ckpt);
    if (root == SOLO_CKPT_NONE) {
        PyErr_SetString(PyExc_ValueError, "this checkpoint holds no object, only tensors");
        return NULL;
    }
    build.made = PyDict_New();
    PyObject *object = build.made ? make(&build, root) : NULL;
    Py_XDECREF(build.made);
    return object;
}
