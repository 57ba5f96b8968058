/* Looks at one thread at regular intervals of its CPU time: does it hold the interpreter's lock?
 *
 * `start(period_ns, report)` in the thread to look at; `counts` are the looks that found it with the lock, and all. With
 * `report`, Python's own handler of SIGPROF is called as well, as soon as the interpreter can. The looks come from a perf
 * event of the kernel or, where those are not allowed, from a timer on the thread's CPU time, which is as fine as the
 * kernel's ticks (4 ms of most). Preloaded, it also counts how often the lock is released; of an interpreter that does
 * not share its library (libpython), those are not seen.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

extern int PyGILState_Check(void);

volatile long counts[2];
volatile long releases;
static struct sigaction of_python;
static int reports, event = -1;
static timer_t timer;

void *PyEval_SaveThread(void) {
    static void *(*original)(void);
    if (original == NULL)
        *(void **)&original = dlsym(RTLD_NEXT, "PyEval_SaveThread");
    releases++;
    return original();
}

static void look(int number) {
    counts[0] += PyGILState_Check();
    counts[1]++;
    if (reports)
        of_python.sa_handler(number);
}

static int start_event(long period_ns) {
    struct perf_event_attr attributes = {
        .size = sizeof attributes, .type = PERF_TYPE_SOFTWARE, .config = PERF_COUNT_SW_TASK_CLOCK,
        .sample_period = (unsigned long)period_ns, .exclude_hv = 1,
    };
    struct f_owner_ex owner = {F_OWNER_TID, (pid_t)syscall(SYS_gettid)};
    event = (int)syscall(SYS_perf_event_open, &attributes, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
    return event < 0 || fcntl(event, F_SETOWN_EX, &owner) < 0 || fcntl(event, F_SETSIG, SIGPROF) < 0
           || fcntl(event, F_SETFL, O_ASYNC) < 0;
}

static int start_timer(long period_ns) {
    struct sigevent signals = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGPROF};
    struct itimerspec times = {{0, period_ns}, {0, period_ns}};
    signals._sigev_un._tid = (pid_t)syscall(SYS_gettid);
    return timer_create(CLOCK_THREAD_CPUTIME_ID, &signals, &timer) != 0 || timer_settime(timer, 0, &times, NULL) != 0;
}

/* Whether it looks: 1 with a perf event, 2 with a timer, 0 with neither. */
int start(long period_ns, int report) {
    struct sigaction own = {.sa_handler = look, .sa_flags = SA_RESTART};
    counts[0] = counts[1] = releases = 0;
    reports = report;
    if (sigaction(SIGPROF, &own, &of_python) != 0)
        return 0;
    return start_event(period_ns) == 0 ? 1 : start_timer(period_ns) == 0 ? 2 : 0;
}

void stop(void) {
    if (event >= 0)
        close(event);
    else
        timer_delete(timer);
    event = -1;
}
