/* relay.c - joins network namespaces by slow, distant links, in user space, for kernels
 * without netem.
 *
 *   relay RATE_MBIT ONE_WAY_MS QUEUE_MS LOSS_PERCENT BAD_MBIT BAD_LOSS_PERCENT NAMESPACE...
 *
 * Makes a TUN device `solo0` in each namespace and carries packets between them by the last
 * byte of the IPv4 destination (10.77.0.k is the k-th namespace, from 1). A packet leaves its
 * node at RATE_MBIT, travels ONE_WAY_MS and arrives at RATE_MBIT; what would wait longer than
 * QUEUE_MS at either end is dropped. One TCP connection, the second to have carried BAD_AFTER
 * bytes, fares worse: it gets BAD_MBIT each way (0: as the others), as behind a narrow path that
 * its addresses were hashed to, and loses BAD_LOSS_PERCENT more. Losses follow a fixed seed. Prints "ready", ends with
 * its parent. Needs root. */
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { NODES_MAX = 32, PACKET_MAX = 65536, BATCH_MAX = 64, FLOWS_MAX = 256, BAD_AFTER = 1 << 20 };

struct packet {
    struct packet *next;
    uint64_t due_ns; /* when it reaches its receiver's line; then: when it is through that */
    int to;
    size_t size;
    uint8_t bytes[];
};

struct queue { /* in order of due_ns */
    struct packet *first, *last;
};

struct node {
    int fd;
    uint64_t sends_until_ns, receives_until_ns; /* when its line is free, each way */
    struct queue sent;                          /* by it: in its own line, or on the way */
    struct queue bad;                           /* the same of the connection that fares worse */
    uint64_t bad_until_ns;                      /* of that one's own line */
    struct queue received;                      /* in the line to it */
};

static struct node nodes[NODES_MAX];
static int node_count;
static double ns_per_byte;
static uint64_t delay_ns, queue_ns;
static uint32_t loss_of_million;

/* TCP connections, while the bad one is not chosen. */
struct flow {
    uint32_t ports; /* the lower one first */
    uint64_t bytes;
};
static struct flow flows[FLOWS_MAX];
static int flow_count, flows_large;
static uint32_t bad_ports; /* 0: not chosen */
static double bad_ns_per_byte;
static uint32_t bad_loss_of_million;
static uint64_t seed = 88172645463325252u;

static uint64_t now_ns(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

static void die(const char *what)
{
    fprintf(stderr, "relay: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int lost(uint32_t of_million)
{
    seed ^= seed << 13; /* xorshift64, Marsaglia 2003 */
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed % 1000000u < of_million;
}

static struct flow *flow_of(uint32_t ports)
{
    for (int i = 0; i < flow_count; i++) {
        if (flows[i].ports == ports) {
            return &flows[i];
        }
    }
    if (flow_count == FLOWS_MAX) {
        return NULL;
    }
    flows[flow_count] = (struct flow){.ports = ports};
    return &flows[flow_count++];
}

/* Whether a packet is of the connection that fares worse; chooses that one. */
static int is_bad(const uint8_t *bytes, size_t size)
{
    size_t at = (bytes[0] & 15u) * 4u;
    if ((bad_ns_per_byte <= 0 && !bad_loss_of_million) || bytes[9] != 6 || size < at + 4) {
        return 0;
    }
    uint32_t from = bytes[at] * 256u + bytes[at + 1], to = bytes[at + 2] * 256u + bytes[at + 3];
    uint32_t ports = from < to ? from << 16 | to : to << 16 | from;
    struct flow *flow = bad_ports ? NULL : flow_of(ports);
    if (flow) {
        int was_large = flow->bytes >= BAD_AFTER;
        flow->bytes += size;
        if (!was_large && flow->bytes >= BAD_AFTER && ++flows_large == 2) {
            bad_ports = ports;
        }
    }
    return bad_ports == ports;
}

/* Opens the device inside the namespace; the descriptor works from outside too. */
static int tun_open(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "/run/netns/%s", name);
    int space = open(path, O_RDONLY | O_CLOEXEC);
    if (space < 0 || setns(space, CLONE_NEWNET) < 0) {
        die(path);
    }
    close(space);
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        die("/dev/net/tun");
    }
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    memcpy(request.ifr_name, "solo0", sizeof "solo0");
    if (ioctl(fd, TUNSETIFF, &request) < 0) {
        die("TUNSETIFF");
    }
    return fd;
}

/* Takes a line for one packet: when it is through, or 0 when the queue is too long. */
static uint64_t line_take(uint64_t *until_ns, uint64_t from_ns, double ns_a_byte, size_t size)
{
    uint64_t begin = *until_ns > from_ns ? *until_ns : from_ns;
    if (begin - from_ns > queue_ns) {
        return 0;
    }
    *until_ns = begin + (uint64_t)((double)size * ns_a_byte);
    return *until_ns;
}

static void push(struct queue *queue, struct packet *packet)
{
    packet->next = NULL;
    if (queue->last) {
        queue->last->next = packet;
    } else {
        queue->first = packet;
    }
    queue->last = packet;
}

static struct packet *pop(struct queue *queue)
{
    struct packet *packet = queue->first;
    queue->first = packet->next;
    queue->last = queue->first ? queue->last : NULL;
    return packet;
}

static void forward(struct node *from, const uint8_t *bytes, size_t size, uint64_t now)
{
    int index = size >= 20 && bytes[0] >> 4 == 4 ? bytes[19] - 1 : -1;
    if (index < 0 || index >= node_count || lost(loss_of_million)) {
        return;
    }
    uint64_t sent = line_take(&from->sends_until_ns, now, ns_per_byte, size);
    int bad = is_bad(bytes, size);
    if (bad && lost(bad_loss_of_million)) {
        return;
    }
    if (bad && sent && bad_ns_per_byte > 0) { /* behind the line, so that it holds up nobody else */
        sent = line_take(&from->bad_until_ns, sent, bad_ns_per_byte, size);
    }
    struct packet *packet = sent ? malloc(sizeof *packet + size) : NULL;
    if (!packet) {
        return;
    }
    packet->due_ns = sent + delay_ns;
    packet->to = index;
    packet->size = size;
    memcpy(packet->bytes, bytes, size);
    push(bad ? &from->bad : &from->sent, packet);
}

/* Whose packet is the next to reach its receiver's line; NULL: none is on its way. */
static struct queue *next_to_arrive(void)
{
    struct queue *next = NULL;
    for (int i = 0; i < 2 * node_count; i++) {
        struct node *node = &nodes[i / 2];
        struct queue *sent = i % 2 ? &node->bad : &node->sent;
        if (sent->first && (!next || sent->first->due_ns < next->first->due_ns)) {
            next = sent;
        }
    }
    return next;
}

/* A line takes what has reached it by `now`, in that order, whoever sent it: what still waits at
 * its sender holds no place in it. */
static void arrive(uint64_t now)
{
    for (;;) {
        struct queue *next = next_to_arrive();
        if (!next || next->first->due_ns > now) {
            return;
        }
        struct packet *packet = pop(next);
        struct node *to = &nodes[packet->to];
        packet->due_ns =
            line_take(&to->receives_until_ns, packet->due_ns, ns_per_byte, packet->size);
        if (packet->due_ns) {
            push(&to->received, packet);
        } else {
            free(packet);
        }
    }
}

static void deliver(struct node *node, uint64_t now)
{
    while (node->received.first && node->received.first->due_ns <= now) {
        struct packet *packet = node->received.first;
        if (write(node->fd, packet->bytes, packet->size) < 0 && errno == EAGAIN) {
            return;
        }
        free(pop(&node->received));
    }
}

static void receive(struct node *node)
{
    static uint8_t bytes[PACKET_MAX];
    for (int i = 0; i < BATCH_MAX; i++) {
        ssize_t size = read(node->fd, bytes, sizeof bytes);
        if (size <= 0) {
            return;
        }
        forward(node, bytes, (size_t)size, now_ns());
    }
}

static uint64_t earlier(uint64_t wake_ns, const struct queue *queue)
{
    return queue->first && queue->first->due_ns < wake_ns ? queue->first->due_ns : wake_ns;
}

static void serve(void)
{
    struct pollfd polls[NODES_MAX];
    for (int i = 0; i < node_count; i++) {
        polls[i] = (struct pollfd){.fd = nodes[i].fd, .events = POLLIN};
    }
    for (;;) {
        uint64_t now = now_ns(), wake = now + 1000000000u;
        arrive(now);
        for (int i = 0; i < node_count; i++) {
            deliver(&nodes[i], now);
            wake = earlier(wake, &nodes[i].received);
            wake = earlier(wake, &nodes[i].sent);
            wake = earlier(wake, &nodes[i].bad);
        }
        uint64_t wait = wake > now ? wake - now : 0;
        struct timespec timeout = {(time_t)(wait / 1000000000u), (long)(wait % 1000000000u)};
        if (ppoll(polls, (nfds_t)node_count, &timeout, NULL) < 0 && errno != EINTR) {
            die("ppoll");
        }
        for (int i = 0; i < node_count; i++) {
            if (polls[i].revents) {
                receive(&nodes[i]);
            }
        }
    }
}

int main(int argc, char **argv)
{
    if (argc < 8 || argc - 7 > NODES_MAX) {
        fprintf(stderr, "usage: relay RATE_MBIT ONE_WAY_MS QUEUE_MS LOSS_PERCENT BAD_MBIT "
                        "BAD_LOSS_PERCENT NAMESPACE...\n");
        return 64;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_TIMERSLACK, 1000);
    /* A line does not wait for a core: what a relay that was set aside does not read is time that
     * its lines stood empty. */
    struct sched_param first = {.sched_priority = 1};
    if (sched_setscheduler(0, SCHED_FIFO, &first) < 0) {
        fprintf(stderr, "relay: no priority (%s): lines may be slower than asked for\n",
                strerror(errno));
    }
    ns_per_byte = 8000.0 / atof(argv[1]);
    delay_ns = (uint64_t)(atof(argv[2]) * 1e6);
    queue_ns = (uint64_t)(atof(argv[3]) * 1e6);
    loss_of_million = (uint32_t)(atof(argv[4]) * 1e4);
    bad_ns_per_byte = atof(argv[5]) > 0 ? 8000.0 / atof(argv[5]) : 0;
    bad_loss_of_million = (uint32_t)(atof(argv[6]) * 1e4);
    for (node_count = 0; node_count < argc - 7; node_count++) {
        nodes[node_count].fd = tun_open(argv[7 + node_count]);
    }
    puts("ready");
    fflush(stdout);
    serve();
}
