/* module.c - the CPython module solo._C: its functions and how its errors are raised. */
#include "py.h"

#include <string.h>

#include "py/load.h"

PyObject *py_text(const char *text)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

PyObject *py_raise_text(int rc, const char *text)
{
    PyObject *module = PyImport_ImportModule("solo.errors");
    if (!module) {
        return NULL;
    }
    PyObject *error = PyObject_CallMethod(module, "from_code", "iN", rc, py_text(text));
    Py_DECREF(module);
    if (error) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
    return NULL;
}

PyObject *py_raise(int rc)
{
    char text[SOLO_TEXT_MAX];
    PyOS_snprintf(text, sizeof text, "%s", solo_error_text());
    return py_raise_text(rc, text);
}

static PyObject *version(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyUnicode_FromString(solo_version());
}

static PyObject *isa(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyUnicode_FromString(solo_isa());
}

static PyObject *error_name(PyObject *module, PyObject *code)
{
    (void)module;
    long rc = PyLong_AsLong(code);
    if (rc == -1 && PyErr_Occurred()) {
        return NULL;
    }
    return PyUnicode_FromString(solo_error_name((int)rc));
}

static PyObject *memory_needed(PyObject *module, PyObject *arguments, PyObject *keywords)
{
    (void)module;
    PyObject *list;
    if (!PyArg_ParseTuple(arguments, "O!:memory_needed", &PyList_Type, &list)) {
        return NULL;
    }
    struct solo_config config;
    PyObject *none = PyTuple_New(0);
    int rc = none ? py_config_parse(none, keywords, &config) : -1;
    Py_XDECREF(none);
    struct py_layout layout;
    if (rc < 0 || py_layout_parse(list, &layout) < 0) {
        return NULL;
    }
    uint64_t bytes = solo_memory_needed(&config, layout.tensors, (size_t)layout.count);
    py_layout_free(&layout);
    return bytes ? PyLong_FromUnsignedLongLong(bytes) : py_raise(SOLO_EINVAL);
}

static int add_type(PyObject *module, PyObject *(*make)(PyObject *))
{
    PyObject *type = make(module);
    int rc = type ? PyModule_AddType(module, (PyTypeObject *)type) : -1;
    Py_XDECREF(type);
    return rc;
}

static int add_constants(PyObject *module)
{
    static const struct {
        const char *name;
        long value;
    } table[] = {
        {"F32", SOLO_F32},
        {"F64", SOLO_F64},
        {"F16", SOLO_F16},
        {"BF16", SOLO_BF16},
        {"I8", SOLO_I8},
        {"U8", SOLO_U8},
        {"I16", SOLO_I16},
        {"I32", SOLO_I32},
        {"I64", SOLO_I64},
        {"BOOL", SOLO_BOOL},
        {"PARAM", SOLO_PARAM},
        {"EXACT", SOLO_EXACT},
        {"MEAN", SOLO_MEAN},
        {"MAX", SOLO_MAX},
        {"MERGED", SOLO_MERGED},
        {"ALONE", SOLO_ALONE},
        {"REJOINED", SOLO_REJOINED},
        {"WIRE_VERSION", SOLO_WIRE_VERSION},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (PyModule_AddIntConstant(module, table[i].name, table[i].value) < 0) {
            return -1;
        }
    }
    return 0;
}

static int execute(PyObject *module)
{
    if (add_type(module, py_engine_type) < 0 || add_type(module, py_master_type) < 0) {
        return -1;
    }
    return py_load_init(module) < 0 ? -1 : add_constants(module);
}

static PyMethodDef methods[] = {
    {"version", version, METH_NOARGS, "The version of libsolo."},
    {"isa", isa, METH_NOARGS, "The instruction set in use."},
    {"error_name", error_name, METH_O, "The name of an error code."},
    {"memory_needed", (PyCFunction)(void (*)(void))memory_needed, METH_VARARGS | METH_KEYWORDS,
     "Bytes that Engine.attach will allocate: memory_needed(layout, **config)."},
    {"status", (PyCFunction)(void (*)(void))py_status, METH_VARARGS | METH_KEYWORDS,
     "Asks a master: status(url, job_id=None, token=None, timeout_ms=1000) -> dict."},
    {"log_start", py_log_start, METH_O, "Keeps log lines of this level and above."},
    {"log_lines", py_log_lines, METH_NOARGS, "The kept log lines: [(level, text), ...]."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)execute}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "solo._C", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__C(void)
{
    return PyModuleDef_Init(&definition);
}
