#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

static _Thread_local char text[SOLO_TEXT_MAX];

static const char *const names[] = {
    "SOLO_OK",        "SOLO_EINVAL",    "SOLO_ENOMEM",   "SOLO_ESYS",   "SOLO_EAGAIN",
    "SOLO_ETIMEDOUT", "SOLO_ECLOSED",   "SOLO_EPEER",    "SOLO_EAUTH",  "SOLO_EVERSION",
    "SOLO_EREFUSED",  "SOLO_EMISMATCH", "SOLO_EABORTED", "SOLO_EOVER",  "SOLO_ENONFINITE",
    "SOLO_ECORRUPT",  "SOLO_ELIMIT",    "SOLO_ENOTSUP",  "SOLO_EINUSE", "SOLO_ENOENT",
};

const char *solo_error_name(int rc)
{
    size_t index = rc > 0 ? 0 : (size_t)(-(long)rc);
    return index < sizeof names / sizeof *names ? names[index] : "SOLO_E?";
}

const char *err_text(void)
{
    return text;
}

const char *solo_error_text(void)
{
    return text;
}

int err_set(int rc, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    char fresh[sizeof text]; /* the old text may be among the arguments */
    vsnprintf(fresh, sizeof fresh, format, arguments);
    va_end(arguments);
    memcpy(text, fresh, sizeof text);
    return rc;
}

int err_errno(const char *format, ...)
{
    int number = errno;
    va_list arguments;
    va_start(arguments, format);
    char fresh[sizeof text];
    int used = vsnprintf(fresh, sizeof fresh, format, arguments);
    va_end(arguments);
    if (used >= 0 && (size_t)used < sizeof fresh) {
        snprintf(fresh + used, sizeof fresh - (size_t)used, ": %s", strerror(number));
    }
    memcpy(text, fresh, sizeof text);
    errno = number;
    return SOLO_ESYS;
}

void err_must_failed(const char *condition, const char *file, int line)
{
    log_line(SOLO_LOG_ERROR, "solo: bug: %s does not hold (%s:%d)", condition, file, line);
    fprintf(stderr, "solo: bug: %s does not hold (%s:%d)\n", condition, file, line);
    abort();
}
