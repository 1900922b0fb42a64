#include "jobdir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "folder.h"

static struct finding not_writable(const char *path, int why)
{
    return fail(CODE_LOG_DIR, text_format("--log_dir: cannot write %s: %s", path, strerror(why)),
                NULL, "choose another directory", NULL);
}

/* Put in place by a rename, so that nobody finds it missing. */
static void point_latest(const struct launch *launch)
{
    char *link = text_format("%s/latest", launch->log_dir);
    char *fresh = text_format("%s.%d", link, (int)getpid());
    if (symlink(launch->job_id, fresh) == 0 && rename(fresh, link) < 0) {
        unlink(fresh); /* a real file is in the way: it stays */
    }
}

struct finding jobdir_make(struct launch *launch)
{
    if (launch->log_dir_temporary) {
        char *path = text_copy(launch->log_dir);
        if (!mkdtemp(path)) {
            return not_writable(path, errno);
        }
        launch->log_dir = path;
    }
    launch->job_dir = text_format("%s/%s", launch->log_dir, launch->job_id);
    launch->node_dir = launch->job_dir;
    if (launch->node_rank >= 0) {
        launch->node_dir = text_format("%s/node%d", launch->job_dir, launch->node_rank);
    }
    int rc = folder_make(launch->node_dir);
    if (rc < 0) {
        return not_writable(launch->node_dir, -rc);
    }
    if (access(launch->node_dir, W_OK | X_OK) < 0) {
        return not_writable(launch->node_dir, errno);
    }
    point_latest(launch);
    if (launch->log_dir_temporary) {
        message_note("logs in %s", launch->job_dir);
    }
    return fine("%s", launch->job_dir);
}

struct finding jobdir_describe(const struct launch *launch, const struct list *argv,
                               const struct list *set)
{
    char *path = text_format("%s/job.json", launch->job_dir);
    int flags = O_WRONLY | O_CREAT | O_CLOEXEC | (launch->node_rank == 0 ? O_TRUNC : O_EXCL);
    int fd = open(path, flags, 0666);
    if (fd < 0 && errno == EEXIST) {
        return fine("another node of this log_dir has written it");
    }
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    if (!file) {
        return not_writable(path, errno);
    }
    char when[32];
    time_t now = time(NULL);
    struct tm utc;
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    fprintf(file, "{\"schema\":1,\"job_id\":%s,\"started\":\"%s\",\"host\":%s,\"node_rank\":%d,",
            text_json(launch->job_id), when, text_json(machine_name()), launch->node_rank);
    fprintf(file, "\"solo\":%s,\"wire\":%u,\"torch\":%s,\"python\":%s,\n\"command\":[",
            text_json(SOLO_VERSION), SOLO_WIRE_VERSION,
            text_json(launch->python.torch ? launch->python.torch : ""),
            text_json(launch->python.path ? launch->python.path : ""));
    for (size_t i = 0; i < argv->count; i++) {
        fprintf(file, "%s%s", i ? "," : "", text_json(argv->items[i]));
    }
    fputs("],\n\"environment\":{", file);
    for (size_t i = 0; i < set->count; i++) {
        char *equal = strchr(set->items[i], '=');
        char *name = text_copy_count(set->items[i], (size_t)(equal - set->items[i]));
        fprintf(file, "%s%s:%s", i ? "," : "", text_json(name), text_json(equal + 1));
    }
    fputs("}}\n", file);
    return fclose(file) == 0 ? fine("%s", path) : not_writable(path, errno);
}
