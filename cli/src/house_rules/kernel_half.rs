//! What the kernel's half keeps to: BPF, the C of `ekiden.ko`, and the Rust that they call.

use std::collections::BTreeSet;

use super::{
    assert_none,
    c::{Function, parts, said},
    files,
};

const BPF: &str = "hosts/kernel/bpf/";
const MODULE: &str = "hosts/kernel/module/";

/// All functions below a folder.
fn functions(folder: &str) -> Vec<Function> {
    let files = ["c", "h"].into_iter().flat_map(files).filter(|(name, _)| name.starts_with(folder));
    let functions: Vec<_> = files.flat_map(|(name, text)| parts(&name, &text).0).collect();
    assert!(functions.len() > 40, "only {} functions were found in {folder}", functions.len());
    functions
}

/// The words of a list.
fn set(list: &str) -> BTreeSet<String> {
    list.split_whitespace().map(str::to_owned).collect()
}

/// What BPF may ask sched_ext to do, and for what.
const ASKED_OF_SCHED_EXT: &str = "\
    dispatch_cancel dsq_insert error_bstr kick_cpu nr_cpu_ids select_cpu_dfl task_set_dsq_vtime";

/// A decision needs state, or a look at the tasks that wait. BPF does neither, and puts a task on a CPU only where an outcome
/// says so.
#[test]
fn bpf_remembers_nothing_and_runs_only_what_an_outcome_names() {
    let file = "hosts/kernel/bpf/ekiden.bpf.c";
    // With the headers that are a part of it; `beyond.h` has queues of its own.
    let headers = ["hosts/kernel/bpf/outcomes.h", "hosts/kernel/bpf/cgroups.h", "hosts/kernel/bpf/groups.h"];
    let sources: Vec<(String, String)> = ["c", "h"].into_iter().flat_map(files).collect();
    let text_of = |wanted: &str| sources.iter().find(|(name, _)| name == wanted).unwrap().1.as_str();
    let text: String = [file].iter().chain(&headers).map(|name| text_of(name)).collect();
    let (functions, outside) = parts(file, &text);
    let mut broken = Vec::new();
    let mut inserts = 0;
    for function in &functions {
        for (at, called) in function.calls() {
            if called.strip_prefix("scx_bpf_").is_some_and(|asked| !set(ASKED_OF_SCHED_EXT).contains(asked)) {
                broken.push(format!("{} calls {called}", function.place()));
            }
            if called == "scx_bpf_dsq_insert" {
                inserts += 1;
                let before = function.body[..at].join(" ");
                let is_told = before.ends_with("if ( outcome . status == EKIDEN_RUN )")
                    || function.name == "run_picked" && before.ends_with("if ( p ) {");
                if !is_told || function.args(at)[1] != ["SCX_DSQ_LOCAL"] {
                    broken.push(format!("{} inserts a task that no outcome names, or elsewhere", function.place()));
                }
            }
            let is_picked = |arg: &[String]| arg == ["p"] || arg[0] == "ekiden_pick";
            if called == "run_picked" && !is_picked(function.args(at)[2]) {
                broken.push(format!("{} runs another task than was picked", function.place()));
            }
        }
        let body = &function.body;
        if body.windows(3).any(|words| words[..2] == ["p", "="] && words[2] != "ekiden_pick") {
            broken.push(format!("{} puts another task in the place of one that was picked", function.place()));
        }
        if body.windows(2).any(|words| words[0] == "static" && words[1] != "char") {
            broken.push(format!("{} remembers something", function.place()));
        }
    }
    assert_eq!(inserts, 3, "tasks are inserted at three places");
    let known = ["const", "extern", "_license", "ekiden_ops"];
    let statements = outside.split(|word| word == ";").filter(|words| !words.is_empty());
    let kept = statements.filter(|words| !known.iter().any(|known| words.iter().any(|word| word == known)));
    let kept: Vec<String> = kept.map(|words| words.join(" ")).collect();
    let expected = "char exit_reason [ 64 ] ; char exit_message [ 256 ] ; struct { __uint ( type , BPF_MAP_TYPE_ARRAY ) ; \
        __uint ( max_entries , 1 ) ; __type ( key , u32 ) ; __type ( value , char [ 256 ] ) ; } fault_text SEC ( \".maps\" )";
    assert_eq!(kept.join(" ; "), expected, "BPF remembers why it ended, and nothing else");
    assert_none(&broken, "BPF converts, calls and converts back: a policy is in Rust");
}

/// What BPF schedules by itself are tasks that the engine has no room for; all others are where an outcome says.
#[test]
fn only_a_task_without_room_waits_in_a_queue_of_bpf() {
    let (mut broken, mut waits) = (Vec::new(), 0);
    // Not the agent's, nor the FIFO in BPF that policies are compared with.
    let is_host = |function: &Function| !["agent", "baseline"].iter().any(|other| function.file.contains(other));
    for function in functions(BPF).into_iter().filter(is_host) {
        let is_beyond = function.file.ends_with("/beyond.h");
        for (at, called) in function.calls() {
            let is_right = match called {
                "wait_beyond" => {
                    waits += 1;
                    function.body[..at].join(" ").ends_with("if ( ! event . task ) {")
                }
                "scx_bpf_dsq_insert" => !is_beyond || function.name == "wait_beyond",
                "scx_bpf_create_dsq" | "scx_bpf_dsq_move_to_local" => is_beyond,
                _ => true,
            };
            if !is_right {
                broken.push(format!("{} calls {called}", function.place()));
            }
        }
    }
    assert_eq!(waits, 1, "one place puts tasks into queues of BPF's own");
    assert_none(&broken, "a queue of BPF's own is for tasks that the engine has no room for");
}

/// A declaration in a `.c` file can differ from the definition, and no compiler sees both. checkpatch finds some of them.
#[test]
fn what_several_files_of_the_module_use_is_declared_in_a_header() {
    let (mut broken, mut seen) = (Vec::new(), 0);
    for (name, text) in files("c").into_iter().filter(|(name, _)| name.starts_with(MODULE)) {
        let (_, outside) = parts(&name, &text);
        for statement in outside.split(|word| word == ";").filter(|words| !words.is_empty()) {
            seen += 1;
            if declares(statement) {
                broken.push(format!("{name}: {}", statement.join(" ")));
            }
        }
    }
    assert!(seen > 80, "only {seen} statements were found");
    assert_none(&broken, "a declaration stands in a header that the definition sees, too");
}

/// Whether a statement outside of all functions declares something that is defined elsewhere: a variable, or a function. What
/// looks like a function of one word is a macro, such as `module_init(...)`.
fn declares(statement: &[String]) -> bool {
    let open = statement.iter().position(|word| word == "(");
    let is_function = statement.last().is_some_and(|word| word == ")")
        && open.is_some_and(|open| open > 1)
        && !statement.iter().any(|word| word == "=")
        && statement[0] != "static";
    is_function || statement[0] == "extern"
}

#[test]
fn declarations_are_told_from_definitions_and_macros() {
    for (text, expected) in [
        ("bool ekiden_a(const struct task_struct *p);", true),
        ("extern int ekiden_b;", true),
        ("int ekiden_b;", false),
        ("module_init(ekiden_init);", false),
        ("static DEFINE_PER_CPU(u64, longest_ns[4]);", false),
        ("static const struct file_operations files = { .open = f(1) };", false),
    ] {
        let (_, outside) = parts("a.c", text);
        assert_eq!(declares(&outside[..outside.len() - 1]), expected, "{text}");
    }
}

/// What the module may read of a task.
const READ_OF_TASKS: &str = "\
    __state cpus_ptr migration_disabled nr_cpus_allowed pid rcu_read_lock_nesting scx.dsq_vtime sched_info.last_arrival signal tgid";

/// What may be given a task by its address, and changes none.
const MAY_BE_GIVEN_A_TASK: &str = "\
    __task_cred ekiden_c_may_run ekiden_do_enable may_choose_for on_cpu_since parent_of put_task_struct \
    signal_pending syscall_get_nr task_cpu task_pid task_pt_regs task_tgid";

#[test]
fn the_module_reads_a_few_fields_of_tasks_and_writes_none() {
    let (mut broken, mut read, mut given) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for function in functions(MODULE) {
        let all: Vec<String> = function.head.iter().chain(&function.body).cloned().collect();
        let declared =
            all.windows(4).filter(|words| words[0] == "struct" && words[1] == "task_struct" && words[2] == "*");
        let mut tasks: BTreeSet<&str> = declared.map(|words| words[3].as_str()).filter(|name| *name != ")").collect();
        tasks.insert("current");
        let body = &function.body;
        for at in (0..body.len()).filter(|at| tasks.contains(body[*at].as_str())) {
            let cast = body[at + 1..].iter().take_while(|word| *word == ")").count();
            let mut end = at + 1 + cast;
            let mut field = String::new();
            while body.get(end).is_some_and(|word| word == "->" || word == ".") {
                if body[end] == "->" && !field.is_empty() {
                    break;
                }
                field = if field.is_empty() { body[end + 1].clone() } else { format!("{field}.{}", body[end + 1]) };
                end += 2;
            }
            if field.is_empty() {
                continue;
            }
            let after = body.get(end).map_or("", String::as_str);
            let before = &body[..at];
            let is_written = ["=", "+=", "-=", "|=", "&=", "++", "--", "<<=", ">>="].contains(&after)
                || before.last().is_some_and(|word| ["&", "++", "--"].contains(&word.as_str()))
                || before.ends_with(&["WRITE_ONCE".to_owned(), "(".to_owned()]);
            if is_written {
                broken.push(format!("{} writes {field}, or takes its address", function.place()));
            }
            read.insert(field);
        }
        for (at, called) in function.calls() {
            if function.args(at).iter().any(|arg| matches!(arg, [name] if tasks.contains(name.as_str()))) {
                given.insert(called.to_owned());
            }
        }
    }
    assert_none(&broken, "the module writes nothing of a task");
    assert_eq!(read, set(READ_OF_TASKS), "what is read of tasks");
    assert_eq!(given, set(MAY_BE_GIVEN_A_TASK), "what is given a task");
}

/// Every call that asks the engine for an outcome has one that was zeroed for it, in BPF and in the module.
#[test]
fn every_outcome_is_zeroed_for_the_call_that_fills_it() {
    const ASKS: [&str; 10] = [
        "deliver_from_bpf",
        "ekiden_cpu_event",
        "ekiden_deliver",
        "ekiden_do_cpu_event",
        "ekiden_do_enable",
        "ekiden_do_watched",
        "ekiden_event",
        "ekiden_guarded_deliver",
        "ekiden_pick",
        "ekiden_task_enable",
    ];
    let (mut broken, mut asked) = (Vec::new(), 0);
    for function in [BPF, MODULE].into_iter().flat_map(functions) {
        // Is handed the outcome of the event before, in which only the new task's id is set.
        if function.name == "ekiden_do_enable" {
            continue;
        }
        let is_handed_in = said(&function.head, "struct ekiden_outcome *outcome");
        // Calls one of two: which, is not up to it.
        let is_choice = function.name == "deliver_from_bpf";
        let mut is_zeroed = is_handed_in || said(&function.body, "struct ekiden_outcome outcome = {}");
        let body = &function.body;
        for at in 0..body.len() {
            let is_loop = ["for", "while", "do", "bpf_for", "bpf_for_each"].contains(&body[at].as_str());
            let zeroes = body[at] == "__builtin_memset" && function.args(at)[0].ends_with(&["outcome".to_owned()]);
            let is_call = body.get(at + 1).is_some_and(|word| word == "(");
            let asks = is_call && (ASKS.contains(&body[at].as_str()) || body[at] == "ekiden_run_guarded");
            if is_loop || zeroes {
                is_zeroed = zeroes;
            } else if asks && function.args(at).iter().any(|arg| matches!(arg, [.., last] if last == "outcome")) {
                asked += 1;
                let member = function.args(at).iter().find_map(|arg| match arg {
                    [and, of, dot, _] if and == "&" && [".", "->"].contains(&dot.as_str()) => Some(of.clone()),
                    _ => None,
                });
                if member.is_none() && !is_zeroed {
                    broken.push(format!("{}: {}", function.place(), body[at]));
                }
                is_zeroed = is_choice;
            }
        }
        // As part of something else, that has a value from its beginning.
        for of in ["takeover"] {
            if said(body, &format!("struct {of} {of};")) {
                broken.push(format!("{}: {of}", function.place()));
            }
        }
    }
    assert!(asked > 25, "only {asked} calls were seen");
    assert_none(&broken, "every outcome comes in zeroed");
}

/// What C asks of Rust without the guard: it calls no policy.
const QUESTIONS: &str = "\
    any_alive begin_several calls check choose chooses_cpu claim counters default forget group host_task idle_cpus is_alive order \
    queue_bytes queue_init queue_put queue_refused queue_take silence take_idle task_count weight_of_running";

/// Which of all take a lock of the engine: an event that interrupts one of these would wait for its own CPU.
const WITH_A_LOCK: &[&str] = &["ekiden_rs_status", "ekiden_rs_task_count"];

#[test]
fn nothing_interrupts_who_has_a_lock_of_the_engine() {
    let mut calls = Vec::new();
    let mut broken = Vec::new();
    for function in &functions(MODULE) {
        for (at, word) in function.body.iter().enumerate().filter(|(_, word)| WITH_A_LOCK.contains(&word.as_str())) {
            let before = &function.body[..at];
            if !["local_irq_disable()", "local_irq_save(flags)"].iter().any(|off| said(before, off)) {
                broken.push(format!("{} calls {word}", function.place()));
            }
            calls.push(word.clone());
        }
    }
    assert!(WITH_A_LOCK.iter().all(|with| calls.iter().any(|call| call == with)), "only {calls:?} were seen");
    assert_none(&broken, "interrupts are off where a lock of the engine is taken outside of an event");
}

/// Which of those that enter Rust do so with the CPU kept by their callers.
const KEPT_BY_CALLERS: &str =
    "deliver_from_bpf ekiden_do_left ekiden_do_watched introduce_some ekiden_run_call_log scan_on";

#[test]
fn rust_is_entered_through_the_guard_and_with_the_cpu_kept() {
    let functions = functions(MODULE);
    let (mut broken, mut guarded, mut bare, mut kept) = (Vec::new(), BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let stopped = run_while_stopped(&functions);
    for function in &functions {
        for (at, word) in function.body.iter().enumerate().filter(|(_, word)| word.starts_with("ekiden_rs_")) {
            let is_guarded = function.body[..at].ends_with(&["ekiden_run_guarded".to_owned(), "(".to_owned()]);
            let name = word["ekiden_rs_".len()..].to_owned();
            if is_guarded { &mut guarded } else { &mut bare }.insert(name);
        }
        let entries = ["ekiden_run_guarded", "ekiden_guarded", "ekiden_guarded_deliver"];
        if let Some((at, _)) = function.calls().find(|(_, called)| entries.contains(called)) {
            let before = &function.body[..at];
            let keeps = ["preempt_disable()", "local_irq_disable()", "local_irq_save(flags)"];
            if !keeps.iter().any(|keeps| said(before, keeps)) && !stopped.contains(&function.name) {
                kept.insert(function.name.clone());
            }
        }
        // A policy's own functions, behind its table.
        for at in 2..function.body.len().saturating_sub(1) {
            let is_member = function.body[at - 2] == "table" && function.body[at - 1] == "->";
            if is_member && function.body[at + 1] == "(" {
                broken.push(format!("{} calls {} of a policy", function.place(), function.body[at]));
            }
        }
    }
    // What policies ask behind a table that the module makes.
    for (name, text) in files("c").iter().filter(|(name, _)| name.starts_with(MODULE)) {
        let outside = parts(name, text).1;
        let named = outside.windows(2).filter(|pair| pair[0] == "=").map(|pair| &pair[1]);
        bare.extend(named.filter_map(|word| word.strip_prefix("ekiden_rs_")).map(str::to_owned));
    }
    assert_none(&broken, "policies are entered through the guard only");
    let both: Vec<String> = guarded.intersection(&bare).cloned().collect();
    assert_none(&both, "what is entered through the guard once is so always");
    assert_eq!(bare, set(QUESTIONS), "what calls no policy is asked without the guard, and nothing else");
    assert_eq!(kept, set(KEPT_BY_CALLERS), "the CPU is kept where Rust is entered, or by all that call that");
}

/// What calls from BPF and from Rust, and all that they call, use of the kernel: nothing of it allocates, sleeps, prints or wakes a task.
const USED_OF_THE_KERNEL: &str = "\
    BITS_TO_LONGS BUILD_BUG_ON READ_ONCE WRITE_ONCE atomic_inc_return atomic_set clamp cmpxchg container_of copy_from_kernel_nofault \
    cpu_active cpu_online cpu_possible cpu_relax cpumask_bits cpumask_test_cpu for_each_online_cpu \
    for_each_possible_cpu get_irq_regs hash_ptr hlist_for_each_entry_rcu hrtimer_get_expires hrtimer_is_queued \
    hrtimer_start in_hardirq instruction_pointer irq_work_queue ktime_get_mono_fast_ns ktime_to_ns likely \
    local_clock local_irq_restore local_irq_save max memcpy memset min min_t ns_to_ktime panic per_cpu per_cpu_ptr \
    raw_smp_processor_id raw_spin_lock_irqsave raw_spin_unlock_irqrestore rcu_read_lock rcu_read_unlock \
    smp_load_acquire smp_store_release static_branch_unlikely syscall_get_nr task_cpu task_pt_regs this_cpu_ptr \
    this_cpu_read this_cpu_write this_cpu_xchg trace_ekiden_event trace_ekiden_policy tracepoint_enabled unlikely \
    user_mode user_return_notifier_register vcpu_is_preempted wq_has_sleeper xa_for_each xa_load";

#[test]
fn a_scheduling_call_uses_nothing_that_allocates_sleeps_prints_or_wakes() {
    let functions = functions(MODULE);
    let is_root = |function: &&Function| {
        let is_asked_for_by_bpf =
            function.file.ends_with("kfuncs.c") && function.head.iter().any(|word| word == "__bpf_kfunc");
        // Before the first and after the last call.
        let is_around = ["ekiden_attach", "ekiden_detach"].contains(&function.name.as_str());
        is_asked_for_by_bpf && !is_around || called_by_rust().contains(&function.name)
    };
    let table = files("c").into_iter().find(|(name, _)| name.ends_with("module/answers.c")).unwrap().1;
    let table = parts("", &table).1.join(" ");
    let table = table.split("running_host = {").nth(1).unwrap();
    let in_table = |function: &&Function| {
        table.contains(&format!("= {} ", function.name)) || table.contains(&format!(") {} ,", function.name))
    };
    let reached: Vec<&Function> = functions.iter().filter(|function| is_root(function) || in_table(function)).collect();
    assert!(reached.len() > 20, "only {} functions are called from outside", reached.len());
    assert_eq!(
        used_of_the_kernel(&functions, reached),
        set(USED_OF_THE_KERNEL),
        "what scheduling calls use of the kernel"
    );
}

/// What these functions, and all that they call of the module, use of the kernel.
fn used_of_the_kernel<'a>(functions: &'a [Function], mut reached: Vec<&'a Function>) -> BTreeSet<String> {
    let (mut next, mut used) = (0, BTreeSet::new());
    while let Some(function) = reached.get(next).copied() {
        next += 1;
        for (_, called) in function.calls() {
            let named = |other: &&Function| other.name == called;
            let here = functions.iter().filter(named).find(|other| other.file == function.file);
            match here.or_else(|| functions.iter().find(named)) {
                Some(other) if reached.iter().any(|known| std::ptr::eq(*known, other)) => {}
                Some(other) => reached.push(other),
                None if called.starts_with("ekiden_") => {}
                None => _ = used.insert(called.to_owned()),
            }
        }
    }
    used
}

/// The functions that run while all other CPUs stand still.
fn run_while_stopped(functions: &[Function]) -> BTreeSet<String> {
    let calls = functions.iter().flat_map(|function| function.calls().map(move |(at, called)| (function, at, called)));
    calls
        .filter(|(_, _, called)| *called == "ekiden_stop_cpus")
        .map(|(function, at, _)| function.args(at)[0].concat())
        .collect()
}

#[test]
fn nothing_allocates_sleeps_prints_or_wakes_while_cpus_stand_still() {
    let functions = functions(MODULE);
    let stopped = run_while_stopped(&functions);
    let roots: Vec<&Function> = functions.iter().filter(|function| stopped.contains(&function.name)).collect();
    assert!(!roots.is_empty() && roots.len() == stopped.len(), "{stopped:?}");
    let used = used_of_the_kernel(&functions, roots);
    let more: Vec<String> = used.difference(&set(USED_OF_THE_KERNEL)).cloned().collect();
    assert_eq!(more, ["BIT_ULL"], "what runs while CPUs stand still uses what a scheduling call may use, and a macro");
}

/// What Rust calls in the module, which is all that it can call of the kernel.
fn called_by_rust() -> BTreeSet<String> {
    let mut called = BTreeSet::new();
    for (name, text) in files("rs") {
        if !["core", "rt", "policy"].iter().any(|part| name.starts_with(&format!("hosts/kernel/{part}/src/"))) {
            continue;
        }
        for block in text.split("unsafe extern \"C\" {").skip(1) {
            let block = block.split("\n}").next().unwrap_or_default();
            called.extend(block.split("fn ").skip(1).filter_map(|rest| Some(rest.split_once('(')?.0.to_owned())));
        }
    }
    assert!(called.len() > 10, "only {called:?} was found");
    called
}

#[test]
fn rust_in_the_kernel_has_its_memory_from_an_arena_and_calls_the_module_only() {
    let mut arenas = 0;
    for (name, text) in files("rs").iter().filter(|(name, _)| name.starts_with("hosts/kernel/")) {
        // The engine's unit tests run in a process, which has its memory from elsewhere.
        let text = text.replace("#[cfg_attr(not(test), global_allocator)]", "#[global_allocator]");
        for allocator in text.split("#[global_allocator]\n").skip(1) {
            let line = allocator.lines().next().unwrap_or_default();
            assert!(line.ends_with("Arena::new();"), "{name}: {line}");
            arenas += 1;
        }
    }
    assert_eq!(arenas, 2, "the engine has an arena, and so has each policy");
    let foreign: Vec<String> = called_by_rust().into_iter().filter(|name| !name.starts_with("ekiden_")).collect();
    assert_none(&foreign, "Rust calls nothing of the kernel but what the module has for it");
}

#[test]
fn c_is_read_as_it_is_meant() {
    let text = "#define X(a) \\\n\t{ a }\n/* { */ struct s { int a; };\nstatic int f(u32 a)\n{\n\treturn g(a, h(&b->c), \"}\");\n}\nOPS(t) void BPF_PROG(k, int p)\n{\n\tq->r(1);\n}\nint v = 1;\n";
    let (functions, outside) = parts("x.c", text);
    assert_eq!(functions.iter().map(|function| function.name.as_str()).collect::<Vec<_>>(), ["f", "k"]);
    assert_eq!(functions[0].calls().map(|(_, name)| name).collect::<Vec<_>>(), ["g", "h"]);
    assert_eq!(functions[0].args(1).len(), 3);
    assert_eq!(functions[1].calls().count(), 0);
    assert!(said(&outside, "int v = 1;") && !said(&outside, "return"));
}
