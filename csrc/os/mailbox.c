#include "os/mailbox.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/err.h"
#include "os/thread.h"

struct letter {
    mailbox_fn fn;
    void *context, *argument;
};

struct mailbox {
    struct loop *loop;
    struct loop_io io; /* an eventfd: readable while letters wait */
    struct lock lock;  /* of all below */
    bool closed;
    uint32_t first, count;
    struct letter letters[MAILBOX_MAX];
};

static bool take(struct mailbox *mailbox, struct letter *out)
{
    lock_take(&mailbox->lock);
    bool any = mailbox->count > 0;
    if (any) {
        *out = mailbox->letters[mailbox->first];
        mailbox->first = (mailbox->first + 1) % MAILBOX_MAX;
        mailbox->count--;
    }
    lock_give(&mailbox->lock);
    return any;
}

/* At most one box full a turn: posters that never rest do not keep sockets waiting. */
static void on_letters(void *context, uint32_t events)
{
    struct mailbox *mailbox = context;
    uint64_t value;
    ssize_t got = read(mailbox->io.fd, &value, sizeof value); /* before looking: none is missed */
    (void)got;
    (void)events;
    lock_take(&mailbox->lock);
    uint32_t count = mailbox->count;
    lock_give(&mailbox->lock);
    struct letter letter;
    while (count-- > 0 && take(mailbox, &letter)) {
        letter.fn(letter.context, letter.argument);
    }
}

int mailbox_new(struct loop *loop, struct mailbox **out)
{
    struct mailbox *mailbox = calloc(1, sizeof *mailbox);
    if (!mailbox) {
        return err_set(SOLO_ENOMEM, "no memory for a mailbox");
    }
    mailbox->loop = loop;
    mailbox->io = (struct loop_io){.fn = on_letters, .context = mailbox};
    mailbox->io.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int rc = mailbox->io.fd < 0 ? err_errno("no descriptor for a mailbox (limit: ulimit -n)")
                                : loop_watch(loop, &mailbox->io, EPOLLIN);
    if (rc < 0) {
        if (mailbox->io.fd >= 0) {
            close(mailbox->io.fd);
        }
        free(mailbox);
        return rc;
    }
    lock_init(&mailbox->lock);
    *out = mailbox;
    return 0;
}

int mailbox_post(struct mailbox *mailbox, mailbox_fn fn, void *context, void *argument)
{
    int rc = 0;
    lock_take(&mailbox->lock);
    if (mailbox->closed) {
        rc = err_set(SOLO_ECLOSED, "the engine was closed");
    } else if (mailbox->count == MAILBOX_MAX) {
        rc = err_set(SOLO_EAGAIN, "%u commands wait for the engine already", MAILBOX_MAX);
    } else {
        uint32_t at = (mailbox->first + mailbox->count++) % MAILBOX_MAX;
        mailbox->letters[at] = (struct letter){fn, context, argument};
        uint64_t one = 1;
        ssize_t written = write(mailbox->io.fd, &one, sizeof one);
        (void)written; /* cannot fail but by a full counter, which is readable too */
    }
    lock_give(&mailbox->lock);
    return rc;
}

void mailbox_close(struct mailbox *mailbox)
{
    lock_take(&mailbox->lock);
    mailbox->closed = true;
    lock_give(&mailbox->lock);
    struct letter letter;
    while (take(mailbox, &letter)) {
        letter.fn(letter.context, letter.argument);
    }
}

void mailbox_free(struct mailbox *mailbox)
{
    if (!mailbox) {
        return;
    }
    mailbox_close(mailbox);
    loop_unwatch(mailbox->loop, &mailbox->io);
    close(mailbox->io.fd);
    lock_deinit(&mailbox->lock);
    free(mailbox);
}
