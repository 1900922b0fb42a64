#include "python.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "number.h"

/* ---- the interpreter -------------------------------------------------------------------- */

static const char *const names[] = {"python3", "python"};
enum { NAME_COUNT = 2 };

static char *in_folder(const char *folder)
{
    for (int i = 0; i < NAME_COUNT; i++) {
        char *path = text_format("%s/%s", folder, names[i]);
        struct stat status;
        if (stat(path, &status) == 0 && S_ISREG(status.st_mode) && access(path, X_OK) == 0) {
            return path;
        }
    }
    return NULL;
}

static char *on_path(void)
{
    const char *path = getenv("PATH");
    while (path && *path) {
        size_t count = strcspn(path, ":");
        char *found = count ? in_folder(text_copy_count(path, count)) : NULL;
        if (found) {
            return found;
        }
        path += count + (path[count] == ':');
    }
    return NULL;
}

struct finding python_find(struct python *out)
{
    *out = (struct python){0};
    char self[PATH_MAX] = {0};
    if (readlink("/proc/self/exe", self, sizeof self - 1) > 0) {
        *strrchr(self, '/') = 0;
        out->path = in_folder(self);
        out->found = "beside solorun";
    }
    const char *venv = getenv("VIRTUAL_ENV");
    if (!out->path && venv && *venv) {
        out->path = in_folder(text_format("%s/bin", venv));
        out->found = "in $VIRTUAL_ENV";
    }
    if (!out->path) {
        out->path = on_path();
        out->found = "the first on PATH";
    }
    if (!out->path) {
        return fail(CODE_PYTHON, "no Python was found",
                    "none beside solorun, none in $VIRTUAL_ENV, none on PATH",
                    "activate the environment that has torch", NULL);
    }
    return fine("%s (%s)", out->path, out->found);
}

/* ---- where its packages are ---------------------------------------------------------------- */

static void add_matches(struct list *folders, const char *pattern)
{
    glob_t found;
    if (glob(pattern, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++) {
            list_add(folders, found.gl_pathv[i]);
        }
        globfree(&found);
    }
}

/* "python3.11" if the interpreter's name or its pyvenv.cfg says so, else "python3*". */
static char *library_name(const char *real, const char *settings)
{
    const char *base = strrchr(real, '/') + 1;
    if (text_starts(base, "python3.")) {
        return text_copy(base);
    }
    const char *version = settings ? strstr(settings, "version") : NULL;
    const char *equal = version ? strchr(version, '=') : NULL;
    const char *at = equal ? equal + 1 : "";
    uint64_t major, minor;
    if (number_next(&at, 10, &major) && *at++ == '.' && number_next(&at, 10, &minor)) {
        return text_format("python%u.%u", (unsigned)major, (unsigned)minor);
    }
    return text_copy("python3*");
}

static void add_prefix(struct list *folders, const char *prefix, const char *library)
{
    add_matches(folders, text_format("%s/lib/%s/site-packages", prefix, library));
    add_matches(folders, text_format("%s/local/lib/%s/dist-packages", prefix, library));
    add_matches(folders, text_format("%s/lib/%s/dist-packages", prefix, library));
    add_matches(folders, text_format("%s/lib/python3/dist-packages", prefix));
}

/* Folders that .pth files in `folder` add to the path; and where an editable solo lies. */
static void add_pth(struct list *folders, const char *folder)
{
    struct list files = {0};
    add_matches(&files, text_format("%s/*.pth", folder));
    for (size_t i = 0; i < files.count; i++) {
        char *text = text_read_file(files.items[i], 8192);
        for (char *line = text ? strtok(text, "\n") : NULL; line; line = strtok(NULL, "\n")) {
            if (*line == '/') {
                list_add(folders, text_trim(line));
            }
        }
    }
    struct list finders = {0};
    add_matches(&finders, text_format("%s/__editable___solo_train_*_finder.py", folder));
    for (size_t i = 0; i < finders.count; i++) {
        char *text = text_read_file(finders.items[i], 8192);
        const char *at = text ? strstr(text, "'solo': '") : NULL;
        if (at) {
            char *package = text_copy_count(at + 9, strcspn(at + 9, "'"));
            *strrchr(package, '/') = 0;
            list_add(folders, package);
        }
    }
}

/* The folder above the interpreter's own; links in between are followed, since /bin may be one. */
static char *prefix_of(const char *python)
{
    char *folder =
        text_format("%s/..", text_copy_count(python, (size_t)(strrchr(python, '/') - python)));
    char real[PATH_MAX];
    return realpath(folder, real) ? text_copy(real) : folder;
}

static struct list package_folders(const char *python)
{
    struct list folders = {0};
    const char *extra = getenv("PYTHONPATH");
    while (extra && *extra) {
        size_t count = strcspn(extra, ":");
        list_add(&folders, text_copy_count(extra, count));
        extra += count + (extra[count] == ':');
    }
    char real[PATH_MAX];
    if (!realpath(python, real)) {
        return folders;
    }
    char *prefix = prefix_of(python);
    char *settings = text_read_file(text_format("%s/pyvenv.cfg", prefix), 4096);
    char *library = library_name(real, settings);
    if (settings) {
        add_prefix(&folders, prefix, library);
    }
    if (!settings || strstr(settings, "include-system-site-packages = true")) {
        add_prefix(&folders, prefix_of(real), library);
        const char *home = getenv("HOME");
        if (home) {
            add_prefix(&folders, text_format("%s/.local", home), library);
        }
    }
    size_t count = folders.count;
    for (size_t i = 0; i < count; i++) {
        add_pth(&folders, folders.items[i]);
    }
    return folders;
}

/* The slow answer, for layouts we do not know: ask the interpreter. Still without torch. */
static char *ask_python(const char *python)
{
    FILE *pipe = popen(text_format("%s -c 'import importlib.metadata as m; "
                                   "print(m.version(\"torch\"))' 2>/dev/null",
                                   text_shell(python)),
                       "re");
    char version[64] = {0};
    bool got = pipe && fgets(version, sizeof version, pipe);
    if (pipe) {
        pclose(pipe);
    }
    return got ? text_trim(version) : NULL;
}

struct finding python_find_torch(struct python *python)
{
    struct list folders = package_folders(python->path);
    for (size_t i = 0; i < folders.count; i++) {
        struct list found = {0};
        if (!python->torch) {
            add_matches(&found, text_format("%s/torch-*.dist-info", folders.items[i]));
            if (found.count) {
                const char *version = strrchr(found.items[0], '/') + sizeof "torch-";
                python->torch = text_copy_count(version, strlen(version) - sizeof "dist-info");
            }
        }
        found = (struct list){0};
        if (!python->adapter) {
            add_matches(&found, text_format("%s/solo/_c10d*.so", folders.items[i]));
            python->adapter = found.count ? found.items[0] : NULL;
        }
    }
    if (!python->torch) {
        python->torch = ask_python(python->path);
    }
    if (!python->torch) {
        return fail(CODE_TORCH, text_format("%s has no torch", python->path),
                    text_format("this Python was chosen because it is %s", python->found),
                    "pip install torch, or activate the environment that has it",
                    text_format("%s -m pip list", text_shell(python->path)));
    }
    return fine("torch %s", python->torch);
}

/* The adapter carries "solo: built for torch 2.13" in its read-only data. */
static char *built_for(const char *path)
{
    static const char mark[] = "solo: built for torch ";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) < 0 || status.st_size == 0) {
        if (fd >= 0) {
            close(fd);
        }
        return NULL;
    }
    size_t size = (size_t)status.st_size;
    void *bytes = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (bytes == MAP_FAILED) {
        return NULL;
    }
    char *version = NULL;
    const char *at = memmem(bytes, size, mark, sizeof mark - 1);
    if (at) {
        at += sizeof mark - 1;
        size_t room = size - (size_t)(at - (const char *)bytes), count = 0;
        while (count < room && count < 16 && at[count] && strchr("0123456789.", at[count])) {
            count++;
        }
        version = text_copy_count(at, count);
    }
    munmap(bytes, size);
    return version;
}

/* Why the dynamic loader would not take this library, as far as its header tells; NULL: it may. */
static const char *library_fault(const char *path)
{
    Elf64_Ehdr header;
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return strerror(errno);
    }
    bool whole = read(fd, &header, sizeof header) == (ssize_t)sizeof header &&
                 fstat(fd, &status) == 0 && memcmp(header.e_ident, ELFMAG, SELFMAG) == 0;
    close(fd);
    if (!whole) {
        return "it is no shared library";
    }
    uint64_t end = header.e_shoff + (uint64_t)header.e_shnum * header.e_shentsize;
    return end > (uint64_t)status.st_size ? "its end is missing" : NULL;
}

/* No registry has it: it is built beside the torch that is there. */
#define SOLO_AGAIN                                                                                 \
    "in solo's source: pip install --no-build-isolation --force-reinstall --no-deps ."

static struct finding check_core(const struct python *python)
{
    const char *slash = strrchr(python->adapter, '/');
    char *folder = text_copy_count(python->adapter, (size_t)(slash - python->adapter));
    char *core = text_format("%s/_C.abi3.so", folder);
    const char *fault = library_fault(core);
    return fault ? fail(CODE_TORCH_FIT, text_format("solo is damaged: %s: %s", core, fault),
                        "an installation that was cut short, or a file that was changed",
                        SOLO_AGAIN, NULL)
                 : fine("%s", core);
}

struct finding python_check_fit(struct python *python)
{
    if (python->adapter) {
        struct finding finding = check_core(python);
        if (finding.level == LEVEL_FAIL) {
            return finding;
        }
    }
    python->adapter_torch = python->adapter ? built_for(python->adapter) : NULL;
    if (!python->torch) {
        return fine("not compared: no torch");
    }
    if (!python->adapter_torch) {
        return fine("not compared: solo is not in this Python's own folders");
    }
    size_t count = strlen(python->adapter_torch);
    if (strncmp(python->torch, python->adapter_torch, count) == 0 &&
        !strchr("0123456789", python->torch[count])) {
        return fine("built for torch %s", python->adapter_torch);
    }
    return fail(CODE_TORCH_FIT,
                text_format("solo was built for torch %s, but %s has torch %s",
                            python->adapter_torch, python->path, python->torch),
                "a backend of torch.distributed fits one minor version of torch only",
                text_format(SOLO_AGAIN ", or pip install torch==%s.*", python->adapter_torch),
                NULL);
}
