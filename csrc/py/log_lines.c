/* log_lines.c - libsolo's log lines, kept until Python asks for them. */
#include "py.h" /* first, as Python.h must be */

#include <pthread.h>
#include <string.h>

#define LINES_MAX 256u /* kept; a newer line then takes the place of the oldest */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* held for a copy, never longer */
static struct {
    int level;
    char text[SOLO_TEXT_MAX];
} lines[LINES_MAX];
static unsigned first;
static unsigned count;

static void keep(void *context, enum solo_log_level level, const char *text)
{
    (void)context;
    pthread_mutex_lock(&mutex);
    if (count == LINES_MAX) {
        first = (first + 1) % LINES_MAX;
        count--;
    }
    unsigned at = (first + count++) % LINES_MAX;
    lines[at].level = (int)level;
    PyOS_snprintf(lines[at].text, sizeof lines[at].text, "%s", text);
    pthread_mutex_unlock(&mutex);
}

PyObject *py_log_start(PyObject *module, PyObject *least)
{
    (void)module;
    long level = PyLong_AsLong(least);
    if (level == -1 && PyErr_Occurred()) {
        return NULL;
    }
    solo_log_set(keep, NULL, (enum solo_log_level)level);
    Py_RETURN_NONE;
}

/* Takes the oldest line; 0: there is none. */
static int take(int *level_out, char text_out[SOLO_TEXT_MAX])
{
    pthread_mutex_lock(&mutex);
    int found = count > 0;
    if (found) {
        *level_out = lines[first].level;
        memcpy(text_out, lines[first].text, SOLO_TEXT_MAX);
        first = (first + 1) % LINES_MAX;
        count--;
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

PyObject *py_log_lines(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    PyObject *list = PyList_New(0);
    char text[SOLO_TEXT_MAX];
    int level;
    while (list && take(&level, text)) {
        PyObject *decoded = py_text(text);
        PyObject *row = decoded ? Py_BuildValue("(iN)", level, decoded) : NULL;
        if (!row || PyList_Append(list, row) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(row);
    }
    return list;
}
