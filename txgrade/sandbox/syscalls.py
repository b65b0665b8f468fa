"""Which system calls a kernel may make, and why the others are refused: the whole policy is in this file.

It is a list of what is allowed: what stands in none of the three tables, as calls that Linux will invent, is refused
too. A refused call fails as on a system that doesn't have it (ENOSYS), so that libraries fall back on an older one.
`filter.py` makes a program of it that Linux runs at every call; `syscall_numbers.py` knows the numbers.
"""

from dataclasses import dataclass
from errno import EINVAL, ENOMEM, ENOTTY, EOPNOTSUPP, EPERM

ALLOWED = {
    "files: the mounts decide which": """
        access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2 fallocate
        fchdir fchmod fchmodat fchown fchownat fdatasync fgetxattr flistxattr fremovexattr fsetxattr fstat fstatfs fsync
        ftruncate futimesat getcwd getdents getdents64 getxattr lchown lgetxattr link linkat listxattr llistxattr
        lremovexattr lseek lsetxattr lstat mkdir mkdirat mknod mknodat newfstatat open openat openat2 pread64 preadv
        pwrite64 pwritev read readlink readlinkat readv removexattr rename renameat renameat2 rmdir sendfile setxattr
        stat statfs statx symlink symlinkat sync_file_range truncate umask unlink unlinkat utime utimensat utimes write
        writev
    """,
    "memory": "brk mlock mlock2 mprotect mremap msync munlock munmap",
    "waiting": """
        clock_nanosleep epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2
        nanosleep pipe pipe2 poll ppoll pselect6 restart_syscall select signalfd signalfd4 timerfd_create
        timerfd_gettime timerfd_settime
    """,
    "signals, timers and clocks": """
        alarm clock_getres clock_gettime getitimer gettimeofday kill pause rt_sigaction rt_sigpending rt_sigprocmask
        rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo setitimer sigaltstack tgkill time
        timer_create timer_delete timer_getoverrun timer_gettime timer_settime times tkill
    """,
    "processes and threads: those of the kernel's own process namespace": """
        arch_prctl execve execveat exit exit_group fork futex get_robust_list getcpu getpgid getpgrp getpid getppid
        getpriority getrandom getrusage getsid gettid membarrier prlimit64 getrlimit setrlimit rseq
        sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler
        sched_rr_get_interval
        sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield set_robust_list set_tid_address
        setpgid setpriority setsid vfork wait4 waitid
    """,
    "who one is; rights can only be given up": """
        capget capset getegid geteuid getgid getgroups getresgid getresuid getuid setfsgid setfsuid setgid setgroups
        setregid setresgid setresuid setreuid setuid uname
    """,
    "sockets, once they are there: the namespace has no network": """
        accept accept4 bind connect getpeername getsockname listen recvfrom recvmmsg recvmsg sendmmsg sendmsg
        sendto shutdown
    """,
}

REFUSED = {
    "keyrings hang on users and sessions, not on namespaces": "add_key keyctl request_key",
    "a file that two sandboxes can read tells one what the other does with it": """
        fanotify_init fanotify_mark inotify_add_watch inotify_init inotify_init1 inotify_rm_watch name_to_handle_at
        open_by_handle_at
    """,
    "tells which pages of a shared file are in memory, or moves them": """
        mincore preadv2 pwritev2 readahead remap_file_pages migrate_pages move_pages mbind get_mempolicy set_mempolicy
        set_mempolicy_home_node
    """,
    "counted for the whole machine, or tells its state": """
        sysinfo io_setup io_destroy io_submit io_cancel io_getevents io_pgetevents pidfd_open sysfs ustat syslog sync
        syncfs adjtimex clock_adjtime lookup_dcookie
    """,
    "queues and memory by a name or number": """
        mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd semctl semget
        semop semtimedop shmat shmctl shmdt shmget
    """,
    "reads or changes another process": """
        kcmp perf_event_open pidfd_getfd pidfd_send_signal process_madvise process_mrelease process_vm_readv
        process_vm_writev ptrace
    """,
    "namespaces, mounts and roots": """
        chroot fsconfig fsmount fsopen fspick mount mount_setattr move_mount open_tree pivot_root setdomainname
        sethostname setns umount2 unshare
    """,
    "a large part of Linux behind one call, with a record of holes": """
        bpf io_uring_enter io_uring_register io_uring_setup userfaultfd vmsplice splice tee memfd_secret modify_ldt
    """,
    "changes the machine": """
        acct clock_settime create_module delete_module finit_module get_kernel_syms init_module ioperm iopl
        kexec_file_load kexec_load nfsservctl query_module quotactl quotactl_fd reboot settimeofday swapoff swapon
        vhangup _sysctl
    """,
    "its flags lie in memory, where no filter can see them: without it, libraries use `clone`": "clone3",
    "no kernel of a notebook needs it": """
        afs_syscall epoll_ctl_old epoll_wait_old futex_waitv get_thread_area getpmsg ioprio_get ioprio_set
        landlock_add_rule landlock_create_ruleset landlock_restrict_self mlockall munlockall personality pkey_alloc
        pkey_free pkey_mprotect putpmsg seccomp security set_thread_area tuxcall uselib vserver
    """,
}


@dataclass(frozen=True)
class Rule:
    """A call that is allowed for some values of its argument number `argument`, of which the lower 32 bits are seen.

    `refused` and `pretended` are whole values: these fail, or do nothing and report success. Of the others those are
    allowed whose bits under `mask` are among `allowed`, and the rest fail with `error`.
    """

    argument: int
    allowed: tuple[int, ...] = (0,)
    mask: int = 0xFFFFFFFF
    error: int = EINVAL
    refused: tuple[int, ...] = ()
    pretended: tuple[int, ...] = ()


UNIX = 1
NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
PIDFD = 0x1000  # the inode of such a descriptor is numbered for the whole machine
TERMINAL = 0x5400  # the first byte of a terminal's requests, and of the general ones of descriptors

RULES = {
    # Locks, leases and notices on a file that two sandboxes can read would reach from one to the other. A lock counts
    # as taken, so that SQLite and the like work: whoever else could hold it is not in the sandbox.
    "flock": Rule(0, (), error=0),
    # DUPFD GETFD SETFD GETFL SETFL, DUPFD_CLOEXEC GETPIPE_SZ ADD_SEALS GET_SEALS; SETLK SETLKW OFD_SETLK OFD_SETLKW
    "fcntl": Rule(1, (0, 1, 2, 3, 4, 1030, 1032, 1033, 1034), pretended=(6, 7, 37, 38)),
    # Terminals and descriptors in general, but not SETD STI LINUX CONS: no drivers, no typing.
    "ioctl": Rule(1, (TERMINAL,), 0xFF00, ENOTTY, refused=(0x5423, 0x5412, 0x541C, 0x541D)),
    "clone": Rule(0, (0,), NAMESPACES | PIDFD, EPERM),
    # The others, e.g. AF_VSOCK and AF_ALG, reach beyond the namespace of the network, or much code of Linux. At
    # other errors than this one ZeroMQ would end its process.
    "socket": Rule(0, (UNIX,), error=EOPNOTSUPP),
    "socketpair": Rule(0, (UNIX,), error=EOPNOTSUPP),
    # SO_COOKIE, SO_NETNS_COOKIE, SO_PASSPIDFD and SO_PEERPIDFD are numbered for the whole machine.
    "getsockopt": Rule(2, (0,), 0, refused=(57, 71, 77)),
    "setsockopt": Rule(2, (0,), 0, refused=(76,)),
    # Not: a request to merge equal pages of all processes (MERGEABLE), or to move shared ones out of memory (COLD,
    # PAGEOUT).
    "madvise": Rule(2, (0, 1, 2, 3, 4, 8, 9, 10, 11, 14, 15, 16, 17, 18, 19, 22, 23)),
    "fadvise64": Rule(3, (0, 1, 2, 3, 5), pretended=(4,)),  # DONTNEED would drop a shared file's pages
    "mmap": Rule(3, (0,), 0x40000, ENOMEM),  # MAP_HUGETLB: large pages are a pool of the machine's
    "memfd_create": Rule(1, (0,), 0x4),  # MFD_HUGETLB
    # PDEATHSIG, DUMPABLE, NAME, SECCOMP (to ask), CAPBSET (to ask), TIMERSLACK, CHILD_SUBREAPER, NO_NEW_PRIVS,
    # THP_DISABLE, SVE's and SME's vector length, names of memory (SET_VMA)
    "prctl": Rule(0, (1, 2, 3, 4, 15, 16, 21, 23, 29, 30, 36, 37, 38, 39, 41, 42, 51, 64, 0x53564D41)),
}


def names(table: dict[str, str]) -> list[str]:
    """All calls of a table, whatever the reason."""
    return [name for group in table.values() for name in group.split()]
