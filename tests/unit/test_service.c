/* The master as solo.h gives it: what it takes, and the file of events that it writes. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine_kit.h"

TEST(a_listening_socket_is_taken_also_by_a_master_that_cannot_begin)
{
    char long_name[200];
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = 0;
    const struct solo_master_config wrong[] = {
        {.job_id = long_name},
        {.codec = long_name},
        {.events_path = "/no/such/folder/events.jsonl"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct solo_url any = {"127.0.0.1", 0};
        struct solo_master_config config = wrong[i];
        struct solo_master *none;
        uint16_t port;
        CHECK_EQ(sock_listen(&any, &config.listen_fd, &port), 0);
        config.size = sizeof config;
        CHECK(solo_master_open(&config, &none) < 0);
        CHECK_EQ(fcntl(config.listen_fd, F_GETFD), -1);
    }
}

/* A master that runs for months: a full file is kept aside and the next begins. */
TEST(the_file_of_events_has_a_limit)
{
    char folder[128], path[160], full[164], line[64] = "";
    struct stat status;
    snprintf(folder, sizeof folder, "%s/solo-service-XXXXXX",
             getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    CHECK(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/events.jsonl", folder);
    snprintf(full, sizeof full, "%s.1", path);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    CHECK_EQ(ftruncate(fd, 64 << 20), 0); /* a hole: no byte is written */
    close(fd);
    master_config = (struct solo_master_config){.events_path = path};
    open_master(1);
    open_node(0, "avg");
    attach_all(1);
    close_all(1);
    CHECK_EQ(stat(full, &status), 0);
    CHECK(status.st_size >= 64 << 20);
    FILE *file = fopen(path, "r");
    CHECK(file && fgets(line, sizeof line, file));
    fclose(file);
    CHECK_HAS(line, "{\"event\": \"joined\"");
    CHECK_EQ(unlink(path), 0);
    CHECK_EQ(unlink(full), 0);
    CHECK_EQ(rmdir(folder), 0);
}
