//! Which programs are measured, how they are started and driven, and how what they print is read: the one place to add one.
//!
//! Scripts are run by `sh -e`, with a directory of their own in `$D`, which is empty at first, and the number of CPUs in `$CPUS`. They
//! should take about 100 million instructions.

use super::read::{self, Read};

/// One program.
pub(super) struct Program {
    /// As reports call it.
    pub(super) name: &'static str,
    /// The packages of Debian's that it is in.
    pub(super) packages: &'static [&'static str],
    /// Programs that the scripts call.
    pub(super) needs: &'static [&'static str],
    /// Done once, under the kernel's own scheduler.
    pub(super) once: &'static str,
    /// What serves: runs in every turn until the turn ends. Empty for nothing.
    pub(super) serve: &'static str,
    /// Succeeds when that is ready.
    pub(super) ready: &'static str,
    /// The program that is measured.
    pub(super) drive: &'static str,
    /// How to read what that prints.
    pub(super) read: Read,
}

/// Nothing but something to drive.
const BARE: Program =
    Program { name: "", packages: &[], needs: &[], once: "", serve: "", ready: "", drive: "", read: read::elapsed };

/// What scripts need besides.
pub(super) const BASE_PACKAGES: &[&str] = &["dash", "coreutils", "util-linux", "libc-bin"];

/// Counts switches and migrations.
pub(super) const PERF: &str = "perf";

pub(super) const ALL: &[Program] = &[
    Program {
        name: "perf-pipe",
        packages: &["linux-perf"],
        needs: &[PERF],
        drive: "perf bench sched pipe -l 4000",
        read: read::perf_pipe,
        ..BARE
    },
    Program {
        name: "perf-messaging",
        packages: &["linux-perf"],
        needs: &[PERF],
        drive: "perf bench sched messaging -g 2 -l 20",
        read: read::perf_messaging,
        ..BARE
    },
    Program {
        name: "perf-futex",
        packages: &["linux-perf"],
        needs: &[PERF],
        drive: "perf bench futex wake -t 48",
        read: read::perf_futex,
        ..BARE
    },
    // It takes a second at least.
    Program {
        name: "perf-epoll",
        packages: &["linux-perf"],
        needs: &[PERF],
        drive: "perf bench epoll wait -t 2 -r 1",
        read: read::perf_epoll,
        ..BARE
    },
    Program {
        name: "hackbench",
        packages: &["rt-tests"],
        needs: &["hackbench"],
        drive: "hackbench -g 2 -l 40",
        read: read::hackbench,
        ..BARE
    },
    Program {
        name: "redis",
        packages: &["redis-server", "redis-tools"],
        needs: &["redis-server", "redis-cli", "redis-benchmark"],
        serve: "exec redis-server --port 6400 --bind 127.0.0.1 --save '' --appendonly no --dir $D",
        ready: "redis-cli -p 6400 ping",
        drive: "redis-benchmark -p 6400 -t get -n 2500 -c 20 --precision 3",
        read: read::redis,
        ..BARE
    },
    Program {
        name: "memcached",
        packages: &["memcached", "libmemcached-tools"],
        needs: &["memcached", "memcslap", "memcping"],
        serve: "exec memcached -u root -l 127.0.0.1 -p 11300 -t 4",
        ready: "memcping --servers=127.0.0.1:11300",
        drive: "memcslap --servers=127.0.0.1:11300 --concurrency=4 --execute-number=800 --test=get",
        read: read::memcslap,
        ..BARE
    },
    Program {
        name: "nginx",
        packages: &["nginx", "wrk"],
        needs: &["nginx", "wrk"],
        once: r#"mkdir $D/www; head -c 1024 /dev/zero | tr '\0' x > $D/www/index.html
cat > $D/nginx.conf <<END
user root; worker_processes $CPUS; daemon off; pid $D/nginx.pid; error_log $D/nginx.err;
events { worker_connections 256; }
http { access_log off; client_body_temp_path $D/1; proxy_temp_path $D/2; fastcgi_temp_path $D/3; uwsgi_temp_path $D/4;
scgi_temp_path $D/5; server { listen 127.0.0.1:8480; root $D/www; } }
END
cat > $D/wrk.lua <<END
done = function(sum, late) io.write(string.format("%d requests in %d us, 50%% %d us, 99%% %d us, 99.9%% %d us\n",
    sum.requests, sum.duration, late:percentile(50), late:percentile(99), late:percentile(99.9))) end
END"#,
        serve: "exec nginx -e $D/nginx.err -c $D/nginx.conf",
        ready: "test -s $D/nginx.pid",
        // It would take a second by itself, and ends in order when it is interrupted.
        drive: "timeout --preserve-status -s INT 0.25 wrk -t 1 -c 8 -d 10 -s $D/wrk.lua http://127.0.0.1:8480/index.html",
        read: read::wrk,
    },
    Program {
        name: "postgresql",
        packages: &["postgresql-17", "util-linux"],
        needs: &["postgres", "initdb", "pgbench", "pg_isready", "setpriv"],
        once: r"chown 65534 $D; as=; test $(id -u) != 0 || as='setpriv --reuid=65534 --regid=65534 --clear-groups'
$as initdb -D $D/data -U postgres --no-sync --no-locale -A trust -c shared_buffers=16MB -c max_connections=20
$as postgres -D $D/data -k $D -c listen_addresses= -c fsync=off & server=$!
until pg_isready -q -h $D; do sleep 0.05; done
pgbench -h $D -U postgres -i -q postgres
kill -INT $server; wait $server",
        serve: r"as=; test $(id -u) != 0 || as='setpriv --reuid=65534 --regid=65534 --clear-groups'
exec $as postgres -D $D/data -k $D -c listen_addresses= -c fsync=off -c autovacuum=off -c jit=off",
        ready: "pg_isready -q -h $D",
        drive: r"rm -f $D/log.*; pgbench -h $D -U postgres -n -S -c 4 -j 2 -t 100 -l --log-prefix=$D/log postgres; cat $D/log.*",
        read: read::pgbench,
    },
    Program {
        name: "stress-switch",
        packages: &["stress-ng"],
        needs: &["stress-ng"],
        drive: "stress-ng --temp-path $D --switch 2 --switch-ops 4000 --metrics-brief",
        read: read::stress_ng,
        ..BARE
    },
    Program {
        name: "stress-yield",
        packages: &["stress-ng"],
        needs: &["stress-ng"],
        // Reads the program: an emulated clock advances to the interruption below while a disk is waited for.
        once: "stress-ng --temp-path $D --switch 1 --switch-ops 10",
        // With a number of operations it does them and then sleeps for a day.
        drive: "timeout --preserve-status -s INT 0.5 stress-ng --temp-path $D --yield 2 --metrics-brief",
        read: read::stress_ng,
        ..BARE
    },
    Program {
        name: "stress-fork",
        packages: &["stress-ng"],
        needs: &["stress-ng"],
        drive: "stress-ng --temp-path $D --fork 2 --fork-ops 200 --metrics-brief",
        read: read::stress_ng,
        ..BARE
    },
    Program {
        name: "stress-futex",
        packages: &["stress-ng"],
        needs: &["stress-ng"],
        once: "stress-ng --temp-path $D --switch 1 --switch-ops 10",
        // The thread that wakes tries until another one waits. Where both share a CPU and no slice is short, 4,000 times take minutes.
        drive: "timeout --preserve-status -s INT 0.5 stress-ng --temp-path $D --futex 2 --metrics-brief",
        read: read::stress_ng,
        ..BARE
    },
    Program {
        name: "gcc",
        packages: &["gcc-14", "libc6-dev"],
        needs: &["gcc"],
        once: r#"for file in 1 2 3 4; do for f in $(seq 8); do
echo "int f$f(int a, int *b) { int s = a; for (int i = 0; i < $f; i++) { s = s * 31 + b[i % 7]; if (s & 1) s ^= $file; } return s; }"
done > $D/$file.c; done"#,
        drive: "for file in 1 2 3 4; do gcc -O1 -c $D/$file.c -o $D/$file.o & all=\"$all $!\"; done; for one in $all; do wait $one; done",
        ..BARE
    },
    Program {
        name: "xz",
        packages: &["xz-utils", "dash"],
        needs: &["xz"],
        once: "seq 60000 > $D/text",
        drive: "xz -T4 -1 --block-size=65536 -kc $D/text > /dev/null",
        ..BARE
    },
    Program {
        name: "sqlite",
        packages: &["sqlite3"],
        needs: &["sqlite3"],
        drive: r#"rm -f $D/t.db*; sqlite3 $D/t.db "PRAGMA journal_mode=WAL; CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT);
WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 8000) INSERT INTO t SELECT x, hex(x * 7919) FROM c;
CREATE INDEX i ON t(b); SELECT count(*), sum(length(b)) FROM t WHERE b > '5';""#,
        ..BARE
    },
    Program {
        name: "ffmpeg",
        packages: &["ffmpeg"],
        needs: &["ffmpeg"],
        drive: "ffmpeg -hide_banner -nostdin -f lavfi -i testsrc=size=160x120:rate=25 -frames:v 30 -c:v libx264 -threads 4 \
                -preset ultrafast -f null -benchmark -",
        read: read::ffmpeg,
        ..BARE
    },
    Program {
        name: "openmp",
        packages: &["gcc-14", "libc6-dev", "libgomp1"],
        needs: &["gcc"],
        // A stencil with a barrier in each sweep and a sum, as the multigrid kernels have.
        once: r#"cat > $D/omp.c <<'END'
#include <stdio.h>
#include <omp.h>
static double a[1 << 15], b[1 << 15];
int main(void)
{
    double sum = 0, begin = omp_get_wtime();
    for (int sweep = 0; sweep < 150; sweep++) {
        #pragma omp parallel for schedule(dynamic, 512)
        for (int i = 1; i < (1 << 15) - 1; i++)
            b[i] = 0.25 * a[i - 1] + 0.5 * a[i] + 0.25 * a[i + 1] + i;
        #pragma omp parallel for reduction(+ : sum)
        for (int i = 0; i < 1 << 15; i++)
            sum += (a[i] = b[i]);
    }
    printf("Time = %.6f s, sum %g\n", omp_get_wtime() - begin, sum);
}
END
gcc -O2 -fopenmp $D/omp.c -o $D/omp"#,
        drive: "OMP_NUM_THREADS=$CPUS OMP_WAIT_POLICY=passive $D/omp",
        read: read::openmp,
        ..BARE
    },
    Program {
        name: "cyclictest",
        packages: &["rt-tests"],
        needs: &["cyclictest"],
        // A hog for each CPU.
        serve: "for hog in $(seq $CPUS); do while :; do :; done & done; touch $D/hogs; wait",
        ready: "test -e $D/hogs",
        drive: "cyclictest --policy=other --default-system -i 2000 -l 150 -q -h 50000 -t 1",
        read: read::cyclictest,
        ..BARE
    },
];

/// The packages of all of them.
pub(super) fn packages() -> Vec<&'static str> {
    ALL.iter().flat_map(|program| program.packages).chain(BASE_PACKAGES).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_has_a_name_of_its_own_and_something_to_drive() {
        for (place, program) in ALL.iter().enumerate() {
            assert!(!program.drive.is_empty() && !program.needs.is_empty() && !program.packages.is_empty());
            assert!(ALL[..place].iter().all(|other| other.name != program.name), "{}", program.name);
            assert_eq!(program.serve.is_empty(), program.ready.is_empty(), "{}", program.name);
        }
    }

    /// The root that a guest's programs have is read-only, and `stress-ng` would write where it is started.
    #[test]
    fn stressors_write_to_the_directory_that_they_may_write_to() {
        let stressors: Vec<&Program> = ALL.iter().filter(|program| program.drive.contains("stress-ng")).collect();
        assert!(stressors.len() > 3 && stressors.iter().all(|program| program.drive.contains(" --temp-path $D ")));
    }
}
