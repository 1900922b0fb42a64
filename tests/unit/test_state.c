#include "node/state.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "node/saver.h"
#include "os/clock.h"

#define WALK(step)                                                                                 \
    while (!(step)) {                                                                              \
    }

#define ELEMENTS 500000u

static char folder[64];
static float weights[ELEMENTS];
static int64_t steps;
static void *data[2];

static void open_job(struct job *job, const char *rule, uint64_t elements)
{
    struct solo_tensor tensors[] = {{"weight", elements, SOLO_F32, SOLO_PARAM},
                                    {"steps", 1, SOLO_I64, SOLO_MAX}};
    struct layout layout;
    struct job_config config = {.codec = "fp32"};
    CHECK_EQ(rule_parse(rule, &config.rule), 0);
    CHECK_EQ(layout_init(&layout, tensors, 2), 0);
    CHECK_EQ(job_open(job, &layout, &config), 0);
}

static void remove_folder(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/x.state", folder);
    unlink(path);
    rmdir(folder);
}

static void make_values(float first)
{
    if (folder[0]) {
        remove_folder();
    } else {
        atexit(remove_folder);
    }
    snprintf(folder, sizeof folder, "%s/solo-state-XXXXXX",
             getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    CHECK(mkdtemp(folder));
    for (uint32_t i = 0; i < ELEMENTS; i++) {
        weights[i] = first + (float)i;
    }
    steps = 17;
    data[0] = weights;
    data[1] = &steps;
}

static bool always(void *context)
{
    (void)context;
    return true;
}

static bool second_time_no(void *context)
{
    int *asked = context;
    return (*asked)++ == 0;
}

static void write_version(const struct job *job, uint64_t number)
{
    struct state_version version = {number, number * 100, job->digest};
    struct store store;
    CHECK_EQ(state_write(job, &version, folder, "x.state", always, NULL, &store), 0);
    CHECK_EQ(store_commit(&store), 0);
}

static void damage(uint64_t offset)
{
    char path[128];
    snprintf(path, sizeof path, "%s/x.state", folder);
    int fd = open(path, O_RDWR);
    uint8_t byte;
    CHECK_EQ(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= 4;
    CHECK_EQ(pwrite(fd, &byte, 1, (off_t)offset), 1);
    close(fd);
}

TEST(what_was_written_is_read_back)
{
    make_values(3);
    struct job from, to;
    open_job(&from, "nesterov", ELEMENTS);
    open_job(&to, "nesterov", ELEMENTS);
    struct state_version version;
    CHECK_EQ(state_read(&to, folder, "x.state", &version), SOLO_ENOENT);
    WALK(job_take_values(&from, data));
    write_version(&from, 5);
    CHECK_EQ(state_read(&to, folder, "x.state", &version), 0);
    CHECK_EQ(version.version, 5);
    CHECK_EQ(version.job_step, 500);
    CHECK(to.digest == from.digest && to.has_anchor);
    CHECK(memcmp(to.theta.base, from.theta.base, from.theta.size) == 0);
    CHECK_EQ(*(int64_t *)to.integers.base, 17);
    job_close(&from);
    job_close(&to);
}

TEST(a_damaged_or_cut_file_is_told_and_never_half_used)
{
    make_values(3);
    struct job job;
    open_job(&job, "avg", ELEMENTS);
    WALK(job_take_values(&job, data));
    struct state_version version;
    const uint64_t places[] = {0,
                               10,
                               100,
                               STATE_HEADER_BYTES - 1,
                               STATE_HEADER_BYTES,
                               STATE_HEADER_BYTES + 4 * ELEMENTS - 1};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        write_version(&job, 1);
        damage(places[i]);
        struct job other;
        open_job(&other, "avg", ELEMENTS);
        CHECK_EQ(state_read(&other, folder, "x.state", &version), SOLO_ECORRUPT);
        CHECK_HAS(solo_error_text(), "x.state");
        CHECK(!other.has_anchor);
        job_close(&other);
    }
    write_version(&job, 1);
    char path[128];
    snprintf(path, sizeof path, "%s/x.state", folder);
    CHECK_EQ(truncate(path, 1000000), 0);
    struct job other;
    open_job(&other, "avg", ELEMENTS);
    CHECK_EQ(state_read(&other, folder, "x.state", &version), SOLO_ECORRUPT);
    job_close(&other);
    job_close(&job);
}

TEST(another_model_or_outer_step_is_told_in_words)
{
    make_values(3);
    struct job job, other;
    open_job(&job, "avg", ELEMENTS);
    WALK(job_take_values(&job, data));
    write_version(&job, 1);
    struct state_version version;
    open_job(&other, "avg", ELEMENTS - 1);
    CHECK_EQ(state_read(&other, folder, "x.state", &version), SOLO_EMISMATCH);
    CHECK_HAS(solo_error_text(), "500000 float32");
    CHECK_HAS(solo_error_text(), "499999 float32");
    job_close(&other);
    open_job(&other, "nesterov", ELEMENTS);
    CHECK_EQ(state_read(&other, folder, "x.state", &version), SOLO_EMISMATCH);
    CHECK_HAS(solo_error_text(), "momentum");
    job_close(&other);
    job_close(&job);
}

TEST(a_write_that_is_abandoned_leaves_the_old_file)
{
    make_values(3);
    struct job job;
    open_job(&job, "avg", ELEMENTS);
    WALK(job_take_values(&job, data));
    write_version(&job, 1);
    struct state_version version = {2, 200, job.digest};
    struct store store;
    int asked = 0;
    CHECK_EQ(state_write(&job, &version, folder, "x.state", second_time_no, &asked, &store),
             SOLO_EABORTED);
    CHECK_EQ(state_read(&job, folder, "x.state", &version), 0);
    CHECK_EQ(version.version, 1);
    job_close(&job);
}

static void count_call(void *context)
{
    ++*(_Atomic int *)context;
}

/* The loop's side of it: hold, change the anchor, offer; whatever the saver does meanwhile, the
 * file is always some whole version, and after close it is the last one. */
TEST(the_saver_writes_whole_versions_and_the_last_one_at_the_end)
{
    make_values(0);
    struct job job, other;
    open_job(&job, "avg", ELEMENTS);
    open_job(&other, "avg", ELEMENTS);
    struct saver saver;
    static _Atomic int calls;
    CHECK_EQ(saver_open(&saver, &job, folder, "x.state", count_call, &calls), 0);
    for (uint64_t number = 0; number <= 40; number++) {
        while (!saver_hold(&saver)) {
            clock_sleep_until(clock_us() + 100);
        }
        weights[number] = -1;
        WALK(job_take_values(&job, data));
        saver_offer(&saver, number, number, job.digest);
        struct state_version version;
        int rc = state_read(&other, folder, "x.state", &version);
        CHECK(rc == 0 || rc == SOLO_ENOENT);
        CHECK(rc != 0 || version.version <= number);
    }
    saver_close(&saver);
    struct state_version version;
    CHECK_EQ(state_read(&other, folder, "x.state", &version), 0);
    CHECK_EQ(version.version, 40);
    job_close(&job);
    job_close(&other);
}

static void expect_version(struct job *job, uint64_t number)
{
    struct state_version version;
    CHECK_EQ(state_read(job, folder, "x.state", &version), 0);
    CHECK_EQ(version.version, number);
}

/* The outer step that asked for it never came: the round was lost, or the node was closed. */
TEST(a_hold_under_which_nothing_changed_keeps_nothing_from_being_saved)
{
    make_values(0);
    struct job job, other;
    open_job(&job, "avg", ELEMENTS);
    open_job(&other, "avg", ELEMENTS);
    WALK(job_take_values(&job, data));
    static _Atomic int calls;
    for (uint64_t number = 1; number <= 20; number++) {
        struct saver saver;
        CHECK_EQ(saver_open(&saver, &job, folder, "x.state", count_call, &calls), 0);
        saver_offer(&saver, number, number, job.digest);
        while (!saver_hold(&saver)) {
            clock_sleep_until(clock_us() + 100);
        }
        saver_close(&saver);
        expect_version(&other, number);
    }
    job_close(&job);
    job_close(&other);
}

TEST(what_was_changed_under_a_hold_is_not_saved_as_what_was_offered_before)
{
    make_values(0);
    struct job job, other;
    open_job(&job, "avg", ELEMENTS);
    open_job(&other, "avg", ELEMENTS);
    WALK(job_take_values(&job, data));
    write_version(&job, 1);
    struct saver saver;
    static _Atomic int calls;
    CHECK_EQ(saver_open(&saver, &job, folder, "x.state", count_call, &calls), 0);
    CHECK(saver_hold(&saver));
    saver_offer(&saver, 2, 2, job.digest);
    while (!saver_hold(&saver)) {
        clock_sleep_until(clock_us() + 100);
    }
    saver_change(&saver);
    memset(job.theta.base, 0xff, job.theta.size);
    saver_release(&saver);
    saver_close(&saver);
    struct state_version version;
    CHECK_EQ(state_read(&other, folder, "x.state", &version), 0); /* 1, or 2 as it was offered */
    job_close(&job);
    job_close(&other);
}

static bool there_is(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static void make_file(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    CHECK(fd >= 0);
    close(fd);
}

TEST(what_dead_writers_left_is_removed_and_nothing_else)
{
    make_values(0);
    static const char *const others[] = {"y.state.7.tmp", "x.state.7.tmp.old", "x.state.tmp",
                                         "x.state.7a.tmp", "x.state"};
    make_file("x.state.1.tmp");
    make_file("x.state.999999.tmp");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        make_file(others[i]);
    }
    struct store store; /* a writer that lives */
    CHECK_EQ(store_begin(&store, folder, "x.state"), 0);
    CHECK_EQ(store_write(&store, "new", 3), 0);
    CHECK_EQ(store_sweep(folder, "x.state"), 2);
    CHECK(!there_is("x.state.1.tmp") && !there_is("x.state.999999.tmp"));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        CHECK(there_is(others[i]));
    }
    CHECK_EQ(store_commit(&store), 0);
    char bytes[3];
    int fd;
    uint64_t size;
    CHECK_EQ(store_open(folder, "x.state", &fd, &size), 0);
    CHECK_EQ(store_read(fd, bytes, size), 0);
    CHECK(size == 3 && memcmp(bytes, "new", 3) == 0);
    store_close(fd);
    for (size_t i = 0; i + 1 < sizeof others / sizeof *others; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", folder, others[i]);
        unlink(path);
    }
}

/* A writer may just be between opening and locking. */
TEST(a_writer_whose_file_was_swept_away_makes_it_anew)
{
    make_values(0);
    struct store store;
    for (int i = 0; i < 5; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(20);
            for (;;) {
                store_sweep(folder, "x.state");
            }
        }
        for (int j = 0; j < 20; j++) {
            CHECK_EQ(store_begin(&store, folder, "x.state"), 0);
            CHECK_EQ(store_write(&store, "new", 3), 0);
            CHECK_EQ(store_commit(&store), 0);
        }
        kill(child, SIGKILL);
        CHECK_EQ(waitpid(child, NULL, 0), child);
    }
}

/* Pids are of one machine or container, a folder may be of several. */
TEST(a_file_that_another_writer_keeps_is_told_and_a_pipe_of_such_a_name_stops_nobody)
{
    make_values(0);
    char path[128], name[64];
    snprintf(name, sizeof name, "x.state.%ld.tmp", (long)getpid());
    make_file(name);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_WRONLY);
    CHECK_EQ(flock(fd, LOCK_EX), 0);
    alarm(20);
    struct store store;
    CHECK_EQ(store_begin(&store, folder, "x.state"), SOLO_ESYS);
    close(fd);
    CHECK_EQ(unlink(path), 0);
    CHECK_EQ(mkfifo(path, 0600), 0);
    CHECK_EQ(store_sweep(folder, "x.state"), 0);
    alarm(0);
    CHECK_EQ(unlink(path), 0);
}

TEST(a_state_file_is_named_by_job_and_node_without_odd_letters)
{
    char name[64];
    state_name("../my job/é", 3, name, sizeof name);
    CHECK_STR(name, "_._my_job___-3.state");
}

/* Where others may write too, a link in the temporary file's place is nobody's but theirs. */
TEST(a_link_in_the_way_is_not_written_through)
{
    make_values(1);
    char victim[128], link[160];
    snprintf(victim, sizeof victim, "%s/x.state", folder);
    snprintf(link, sizeof link, "%s/x.state.%d.tmp", folder, (int)getpid());
    FILE *file = fopen(victim, "w");
    CHECK(file && fputs("mine", file) >= 0);
    fclose(file);
    CHECK_EQ(symlink(victim, link), 0);
    struct store store;
    CHECK_EQ(store_begin(&store, folder, "x.state"), SOLO_ESYS);
    CHECK_HAS(solo_error_text(), "cannot write");
    struct stat status;
    CHECK_EQ(stat(victim, &status), 0);
    CHECK_EQ(status.st_size, 4);
    CHECK_EQ(unlink(link), 0);
}

TEST(a_fifo_in_the_states_place_does_not_hang_the_start)
{
    make_values(1);
    char path[128];
    snprintf(path, sizeof path, "%s/x.state", folder);
    CHECK_EQ(mkfifo(path, 0600), 0);
    struct job job;
    struct state_version version;
    open_job(&job, "avg", ELEMENTS);
    CHECK_EQ(state_read(&job, folder, "x.state", &version), SOLO_ECORRUPT);
    CHECK_HAS(solo_error_text(), "ends too early");
    job_close(&job);
}
