#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "dial_kit.h"
#include "os/shm.h"
#include "os/sock.h"

static bool child_has(int fd)
{
    pid_t child = fork();
    if (child == 0) {
        _exit(fcntl(fd, F_GETFD) >= 0);
    }
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    return WEXITSTATUS(status) == 1;
}

/* Or the other nodes hear of this one's death only when its last DataLoader worker has gone too. */
TEST(a_forked_child_keeps_none_of_our_sockets)
{
    struct solo_url url = {"127.0.0.1", 0};
    int listener = -1, dialed = -1, accepted = -1, local = -1, local_dialed = -1;
    uint16_t port = 0;
    CHECK_EQ(sock_listen(&url, &listener, &port), 0);
    url.port = port;
    enum solo_reach reach = SOLO_REACHED;
    CHECK_EQ(connect_to(&url, &dialed, &reach), 0);
    struct addr from;
    while (sock_accept(listener, &accepted, &from) == SOLO_EAGAIN) {
    }
    char name[64];
    snprintf(name, sizeof name, "solo-test-fork/%d", (int)getpid());
    CHECK_EQ(shm_listen(name, &local), 0);
    CHECK_EQ(shm_connect(name, &local_dialed), 0);
    int fds[] = {listener, dialed, accepted, local, local_dialed};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
        CHECK(!child_has(fds[i]));
        close(fds[i]);
    }
}

TEST(a_forked_child_keeps_the_programs_files_whatever_their_number_was)
{
    struct solo_url url = {"127.0.0.1", 0};
    int fd = -1;
    uint16_t port = 0;
    CHECK_EQ(sock_listen(&url, &fd, &port), 0);
    close(fd);
    int file = open("/dev/null", O_RDONLY);
    CHECK_EQ(file, fd);
    CHECK(child_has(file));
    close(file);
}
