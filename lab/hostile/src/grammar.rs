//! The grammar: what a body may do, and where.

use std::fmt::Write;

use fastrand::Rng;

use crate::Host;

/// Where a body may do something; those that come often stand twice.
pub(crate) const PLACES: [&str; 36] = [
    "Call(Call::PickNextTask)",
    "Call(Call::PickNextTask)",
    "Call(Call::PickNextTask)",
    "Call(Call::TaskWakeup)",
    "Call(Call::TaskWakeup)",
    "Call(Call::TaskWakeup)",
    "Call(Call::TaskPreempt)",
    "Call(Call::TaskTick)",
    "Call(Call::PntErr)",
    "Call(Call::TaskNew)",
    "Call(Call::TaskYield)",
    "Call(Call::TaskBlocked)",
    "Call(Call::TaskDead)",
    "Call(Call::TaskDeparted)",
    "Call(Call::TaskTick)",
    "Call(Call::TaskAffinityChanged)",
    "Call(Call::TaskPrioChanged)",
    "Call(Call::SelectTaskRq)",
    "Call(Call::SelectTaskRq)",
    "Call(Call::MigrateTaskRq)",
    "Call(Call::Balance)",
    "Call(Call::Balance)",
    "Call(Call::BalanceErr)",
    "Call(Call::RegisterQueue)",
    "Call(Call::EnterQueue)",
    "Call(Call::UnregisterQueue)",
    "Call(Call::ParseHint)",
    "Call(Call::ReregisterPrep)",
    "Call(Call::ReregisterInit)",
    "Call(Call::EnterIdle)",
    "Call(Call::ExitIdle)",
    "Call(Call::CpuOnline)",
    "Call(Call::CpuOffline)",
    "Call(Call::Timer)",
    "Call(Call::TaskParams)",
    "New",
];

/// How deep statements stand in each other.
const DEPTH: u32 = 3;

/// The source of a body: the function `b` + number, and what it calls.
pub(crate) fn body(seed: u64, number: u64, host: Host) -> String {
    // Far apart, so that no two bodies begin alike.
    let rng = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number.wrapping_mul(0xd1b5_4a32_d192_ed03));
    let mut writer = Writer { rng, number, host, helpers: String::new(), helper_count: 0 };
    let mut arms = String::new();
    for _ in 0..writer.rng.usize(1..=3) {
        let place = match writer.rng.usize(0..PLACES.len() + 1) {
            at if at < PLACES.len() => PLACES[at],
            _ => "Save",
        };
        // A rare call does it each time.
        let often =
            place.contains("Wakeup") || place.contains("Pick") || place.contains("Tick") || place.contains("Preempt");
        let every = if often { *writer.one_of(&[1_u64, 1, 3, 7, 40]) } else { 1 };
        let after = if often { *writer.one_of(&[0_u64, 20, 100]) } else { 0 };
        let statements = writer.statements(DEPTH, place != "New");
        let _ =
            writeln!(arms, "        At::{place} if s.n >= {after} && s.n % {every} == 0 => {{\n{statements}        }}");
    }
    format!(
        "{}\npub fn b{number}(s: &mut Scene<'_>) {{\n    match s.at {{\n{arms}        _ => {{}}\n    }}\n}}\n",
        writer.helpers
    )
}

struct Writer {
    rng: Rng,
    number: u64,
    host: Host,
    /// Functions beside the body.
    helpers: String,
    helper_count: u32,
}

impl Writer {
    fn one_of<'a, T>(&mut self, these: &'a [T]) -> &'a T {
        &these[self.rng.usize(0..these.len())]
    }

    fn may_be_endless(&self) -> bool {
        self.host == Host::Kernel
    }

    fn statements(&mut self, depth: u32, has_policy: bool) -> String {
        let mut text = String::new();
        for _ in 0..self.rng.usize(1..=3) {
            let _ = writeln!(text, "            {}", self.statement(depth, has_policy));
        }
        text
    }

    fn statement(&mut self, depth: u32, has_policy: bool) -> String {
        // What needs a policy comes in most calls, and is what they are about.
        let kinds = if has_policy { 14 } else { 5 };
        match self.rng.u32(0..kinds) {
            0 => self.a_loop(depth, has_policy),
            1 => self.recursion(),
            2 => self.copy(),
            3 => self.memory(),
            4 => self.panic(),
            5 => self.with_cx(&["cx.resched(cx.cpu());", "for cpu in 0..cx.topology().nr_cpus() { cx.resched(cpu); }", "cx.resched(5_000);"]),
            6 => self.number_to("arm_timer"),
            7 => self.number_to("set_slice_ns"),
            8 | 9 => self.lock(depth),
            10 | 11 => self.token(),
            12 => self.answer(),
            _ => self.with_cx(&[
                "for _ in 0..black_box(50) { black_box(cx.idle_cpus()); }",
                "black_box((cx.now_ns(), cx.topology().nr_cpus()));",
                "if let Some(token) = &s.token { black_box((cx.allowed_cpus(token.task()), cx.group(token.task()))); }",
                "for cpu in [0, 1, 4_000, u32::MAX] { if let Some(token) = &s.token { black_box(cx.may_run(token.task(), cpu)); } }",
            ]),
        }
    }

    fn with_cx(&mut self, these: &[&str]) -> String {
        let one = self.one_of(these);
        format!("if let Some(cx) = s.cx {{ {one} }}")
    }

    fn number_to(&mut self, function: &str) -> String {
        let number = *self.one_of(&["0", "1", "1_000", "100_000", "5_000_000", "u64::MAX"]);
        format!("if let Some(cx) = s.cx {{ cx.{function}(black_box({number})); }}")
    }

    fn inner(&mut self, depth: u32, has_policy: bool) -> String {
        match depth {
            0 => "black_box(());".to_owned(),
            _ => self.statement(depth - 1, has_policy),
        }
    }

    fn a_loop(&mut self, depth: u32, has_policy: bool) -> String {
        let inner = self.inner(depth, has_policy);
        let most = if self.may_be_endless() { 6 } else { 3 };
        let turns =
            *self.one_of(if self.may_be_endless() { &["2", "30", "2_000", "300_000"] } else { &["2", "3", "5"] });
        match self.rng.u32(0..most) {
            0 => format!("for _ in 0..black_box({turns}_u64) {{ {inner} }}"),
            1 => format!("for _ in 0..black_box({turns}_u64) {{ for _ in 0..black_box(9) {{ spin_loop(); }} }}"),
            2 => format!("let mut left = black_box({turns}_u64); while left != 0 {{ left -= 1; {inner} }}"),
            3 => "loop { black_box(()); }".to_owned(),
            4 => "loop { spin_loop(); }".to_owned(),
            _ => format!("while black_box(true) {{ {inner} }}"),
        }
    }

    /// A function that calls itself, in one of the ways that there are.
    fn recursion(&mut self) -> String {
        self.helper_count += 1;
        let name = format!("{}_{}", self.number, self.helper_count);
        let limit = *self.one_of(if self.may_be_endless() { &["3", "12", "u64::MAX"] } else { &["3", "12"] });
        let words = *self.one_of(&["1", "8", "40"]);
        let frame = format!("let frame = black_box([depth; {words}]);");
        let (helper, call) = match self.rng.u32(0..5) {
            0 => (
                format!(
                    "#[inline(never)]\nfn r{name}(depth: u64) -> u64 {{ {frame} if black_box(depth) < {limit} {{ r{name}(depth + 1) ^ frame[0] }} else {{ 0 }} }}"
                ),
                format!("black_box(r{name}(0));"),
            ),
            1 => (
                format!(
                    "#[inline(never)]\nfn r{name}(depth: u64) -> u64 {{ {frame} if black_box(depth) < {limit} {{ q{name}(depth + 1) ^ frame[0] }} else {{ 0 }} }}\n\
                     #[inline(never)]\nfn q{name}(depth: u64) -> u64 {{ 1 + black_box(r{name}(depth) % 9) }}"
                ),
                format!("black_box(r{name}(0));"),
            ),
            2 => (
                format!(
                    "fn r{name}(depth: u64, next: Pointer) -> u64 {{ {frame} if black_box(depth) < {limit} {{ (black_box(next).0)(depth + 1, next) ^ frame[0] }} else {{ 0 }} }}"
                ),
                format!("black_box(r{name}(0, Pointer(black_box(r{name}))));"),
            ),
            3 => (
                format!(
                    "struct R{name};\nimpl Again for R{name} {{ fn again(&self, depth: u64, other: &dyn Again) -> u64 {{ {frame} if black_box(depth) < {limit} {{ other.again(depth + 1, self) ^ frame[0] }} else {{ 0 }} }} }}\n\
                     struct Q{name};\nimpl Again for Q{name} {{ fn again(&self, depth: u64, other: &dyn Again) -> u64 {{ black_box(other).again(depth, self) }} }}"
                ),
                format!(
                    "let (one, other): (Box<dyn Again>, Box<dyn Again>) = black_box((Box::new(R{name}), Box::new(Q{name}))); black_box(one.again(0, &*other));"
                ),
            ),
            // Little stack, and as many calls as two to that power.
            _ => {
                let deep = *self.one_of(if self.may_be_endless() { &["4", "60"] } else { &["4"] });
                (
                    format!(
                        "#[inline(never)]\nfn r{name}(depth: u64) -> u64 {{ let next = black_box(depth).saturating_sub(1); if depth == 0 {{ 1 }} else {{ r{name}(next) ^ r{name}(black_box(next)) }} }}"
                    ),
                    format!("black_box(r{name}({deep}));"),
                )
            }
        };
        let _ = write!(self.helpers, "\n{helper}\n");
        call
    }

    fn copy(&mut self) -> String {
        let (sizes, times): (&[&str], &[&str]) = match self.host {
            Host::Kernel => (&["64", "4 << 10", "256 << 10", "1 << 20"], &["1", "20", "100_000"]),
            Host::Simulator => (&["64", "4 << 10"], &["1", "20"]),
        };
        let (size, times) = (*self.one_of(sizes), *self.one_of(times));
        let act = *self.one_of(&[
            "bytes.copy_within(1.., 0);",
            "black_box(bytes.clone());",
            "bytes.fill(black_box(7));",
            "black_box(bytes == other);",
            "bytes.copy_from_slice(&other);",
            "black_box(bytes.iter().rev().copied().collect::<Vec<u8>>());",
            "bytes.sort_unstable();",
        ]);
        format!(
            "let mut bytes = vec![3_u8; {size}]; let other = bytes.clone(); for _ in 0..black_box({times}_u64) {{ {act} black_box(&mut bytes); }}"
        )
    }

    fn memory(&mut self) -> String {
        let most = if self.may_be_endless() { 7 } else { 4 };
        let count = *self.one_of(if self.may_be_endless() { &["10", "1_000", "10_000_000"] } else { &["10", "1_000"] });
        match self.rng.u32(0..most) {
            0 => format!(
                "let mut many = Vec::new(); for one in 0..black_box({count}_u64) {{ many.push(one); }} black_box(&many);"
            ),
            1 => format!(
                "let mut many = BTreeMap::new(); for one in 0..black_box({count}_u64) {{ many.insert(one ^ 5, one); }} black_box(&many);"
            ),
            2 => format!(
                "let mut text = String::new(); for one in 0..black_box({count}_u64) {{ text += &format!(\"{{one}} \"); }} black_box(&text);"
            ),
            3 => "if let Some(me) = s.me { let mut many = me.b.lock(); many.clear(); many.extend(0..black_box(99)); }"
                .to_owned(),
            4 => "black_box(Box::leak(Box::new([1_u64; 100])));".to_owned(),
            5 => format!("for _ in 0..black_box({count}_u64) {{ forget(black_box(vec![1_u8; 300])); }}"),
            _ => "if let Some(me) = s.me { me.b.lock().extend([1; 500]); }".to_owned(),
        }
    }

    fn lock(&mut self, depth: u32) -> String {
        let inner = self.inner(depth, true);
        let act = match self.rng.u32(0..if self.may_be_endless() { 8 } else { 5 }) {
            0 => "me.a.lock().push(1); me.a.lock().clear();".to_owned(),
            1 => "let first = me.a.lock(); let second = me.b.lock(); drop((first, second));".to_owned(),
            2 => "let second = me.b.lock(); let first = me.a.lock(); drop((first, second));".to_owned(),
            3 => "let sum: usize = me.queues.iter().map(|(_, queue)| queue.lock().len()).sum(); black_box(sum);"
                .to_owned(),
            4 => "let held = me.b.lock(); for _ in 0..black_box(200) { spin_loop(); } drop(held);".to_owned(),
            5 => format!("let held = me.a.lock(); {inner} drop(held);"),
            6 => "forget(me.a.lock());".to_owned(),
            _ => format!(
                "let held: Vec<_> = me.queues.iter().map(|(_, queue)| queue.lock()).collect(); {inner} drop(held);"
            ),
        };
        format!("if let Some(me) = s.me {{ {act} }}")
    }

    fn panic(&mut self) -> String {
        let mut acts = vec![
            "if black_box(true) { panic!(\"planted\"); }",
            "if black_box(true) { panic!(\"{}\", Bomb { in_drop: false }); }",
            "drop(black_box(Bomb { in_drop: true }));",
            "black_box([1, 2, 3][black_box(7)]);",
            "black_box(black_box(u64::MAX) + black_box(1));",
            "black_box(9 / black_box(0_u64));",
            "black_box(black_box(None::<u64>).unwrap());",
            "black_box(&black_box(vec![1_u8])[black_box(9)..]);",
            "let cell = RefCell::new(1); let held = cell.borrow_mut(); black_box(*cell.borrow()); drop(held);",
            "assert_eq!(black_box(vec![1; 40]), vec![2; 40]);",
            "black_box(&\"größe\"[..black_box(3)]);",
            "if black_box(true) { unreachable!(); }",
            "if black_box(true) { panic!(\"{:?}\", vec![1_u64; black_box(3_000)]); }",
        ];
        if self.may_be_endless() {
            acts.push("if black_box(true) { panic!(\"{}\", Endless); }");
        }
        // Seldom at once: what else a body does would not be seen.
        let act = *self.one_of(&acts);
        let when = *self.one_of(&["true", "s.n % 50 == 49", "s.n > 300"]);
        format!("if {when} {{ {act} }}")
    }

    fn token(&mut self) -> String {
        (*self.one_of(&[
            "drop(s.token.take());",
            "if s.n % 9 == 8 { drop(s.token.take()); }",
            "forget(s.token.take());",
            "if s.n % 60 == 59 { forget(s.token.take()); }",
            "if let (Some(me), Some(token)) = (s.me, s.token.take()) { me.hidden.lock().push(token); }",
            "if let (Some(me), Some(token)) = (s.me, s.token.take()) { let mut hidden = me.hidden.lock(); hidden.push(token); s.token = Some(hidden.swap_remove(0)); }",
            "if let (Some(me), Some(token)) = (s.me, s.token.take()) { let cpus = me.queues.iter().count() as u32; me.queues[(token.cpu() + 1) % cpus].lock().push_back(token); }",
            "if let Some(me) = s.me { if s.token.is_none() { s.token = me.queues.iter().find_map(|(_, queue)| queue.lock().pop_back()); } }",
            "if let Some(me) = s.me { if s.token.is_none() { s.token = me.hidden.lock().pop(); } }",
            "if let Some(me) = s.me { for (_, queue) in me.queues.iter() { let mut queue = queue.lock(); if let Some(token) = queue.pop_front() { queue.push_back(token); } } }",
        ]))
        .to_owned()
    }

    fn answer(&mut self) -> String {
        (*self.one_of(&[
            "s.cpu = Some(black_box(0));",
            "s.cpu = Some(black_box(1));",
            "s.cpu = Some(black_box(5_000));",
            "s.cpu = Some((s.n % 4) as u32);",
            "s.cpu = Some(u32::MAX);",
            "s.task = Some(TaskId::from_bits(black_box(s.n)));",
            "s.task = Some(TaskId::from_bits(u64::MAX));",
            "if let Some(me) = s.me { s.task = me.queues.iter().find_map(|(_, queue)| queue.lock().iter().last().map(|token| token.task())); }",
        ]))
        .to_owned()
    }
}
