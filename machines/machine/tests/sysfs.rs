//! Reads topologies from made-up trees of sysfs, and from this machine's own.

use std::{
    fs,
    path::{Path, PathBuf},
};

use ekiden::Topology;
use ekiden_machine::{MachineError, read_sysfs};
use proptest::{prelude::*, sample::subsequence};
use tempfile::TempDir;

/// A tree with these files below `devices/system`.
fn tree<P: AsRef<Path>>(files: impl IntoIterator<Item = (P, String)>) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = root.path().join("devices/system").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

fn read(files: &[(&str, &str)]) -> Result<Topology, MachineError> {
    read_sysfs(tree(files.iter().map(|(name, text)| (name, format!("{text}\n")))).path())
}

/// What the kernel shows of two packages of two caches of two cores of two threads, numbered as Linux does.
fn server() -> Vec<(PathBuf, String)> {
    let mut files = vec![("cpu/possible".into(), "0-15\n".into()), ("cpu/online".into(), "0-15\n".into())];
    let mut file = |name: String, text: String| files.push((name.into(), text + "\n"));
    for cpu in 0..16 {
        let core = cpu % 8;
        let (llc, package) = (core / 2 * 2, core / 4);
        let dir = format!("cpu/cpu{cpu}");
        let siblings = format!("{core},{}", core + 8);
        file(format!("{dir}/topology/core_cpus_list"), siblings.clone());
        file(format!("{dir}/topology/thread_siblings_list"), siblings.clone());
        file(format!("{dir}/topology/core_id"), (core % 4).to_string());
        file(format!("{dir}/topology/physical_package_id"), package.to_string());
        for (index, level, shared) in [
            (0, 1, siblings.clone()),
            (1, 1, siblings.clone()),
            (2, 2, siblings),
            (3, 3, format!("{llc}-{},{}-{}", llc + 1, llc + 8, llc + 9)),
        ] {
            file(format!("{dir}/cache/index{index}/level"), level.to_string());
            file(format!("{dir}/cache/index{index}/shared_cpu_list"), shared);
        }
    }
    for node in 0..2 {
        let first = node * 4;
        file(format!("node/node{node}/cpulist"), format!("{first}-{},{}-{}", first + 3, first + 8, first + 11));
        file(format!("node/node{node}/distance"), if node == 0 { "10 20" } else { "20 10" }.into());
    }
    files
}

#[test]
fn a_regular_server_is_read_as_it_is_built() {
    assert_eq!(read_sysfs(tree(server()).path()).unwrap(), Topology::regular(2, 2, 2, 2));
}

#[test]
fn cores_are_told_apart_by_package_and_number_where_there_are_no_lists() {
    let files = server().into_iter().filter(|(name, _)| !name.ends_with("core_cpus_list"));
    let files = files.filter(|(name, _)| !name.ends_with("thread_siblings_list"));
    assert_eq!(read_sysfs(tree(files).path()).unwrap(), Topology::regular(2, 2, 2, 2));
}

#[test]
fn without_caches_a_package_has_one() {
    let files = server().into_iter().filter(|(name, _)| !name.to_string_lossy().contains("cache"));
    assert_eq!(read_sysfs(tree(files).path()).unwrap(), Topology::regular(2, 1, 4, 2));
}

#[test]
fn without_caches_and_packages_a_node_has_one() {
    let machine = read(&[("cpu/possible", "0-3"), ("node/node0/cpulist", "0-1"), ("node/node1/cpulist", "2-3")]);
    assert_eq!(machine.unwrap(), Topology::regular(2, 1, 2, 1));
}

#[test]
fn a_list_of_cpus_is_all_that_it_takes() {
    for list in ["possible", "present", "online"] {
        assert_eq!(read(&[(&format!("cpu/{list}"), "0-2")]).unwrap(), Topology::flat(3));
    }
}

#[test]
fn cpus_that_are_offline_or_not_plugged_in_count() {
    let machine = read(&[
        ("cpu/possible", "0-5"),
        ("cpu/present", "0-3"),
        ("cpu/online", "0,2-3"),
        ("cpu/cpu1/node1/cpulist", "2-3"),
        ("node/node0/cpulist", "0"),
        ("node/node1/cpulist", "2-3"),
    ])
    .unwrap();
    assert_eq!(machine.nr_cpus(), 6);
    assert_eq!(machine.online().to_string(), "0,2-3");
    assert_eq!(machine.cpu(1).node, 1, "the link in its directory says so");
}

#[test]
fn a_hole_in_the_possible_cpus_is_an_offline_one() {
    let machine = read(&[("cpu/possible", "0,2"), ("cpu/online", "0,2")]).unwrap();
    assert_eq!(machine.nr_cpus(), 3);
    assert!(!machine.cpu(1).online);
}

#[test]
fn nodes_with_gaps_and_without_cpus_are_counted_through() {
    let machine = read(&[
        ("cpu/possible", "0-1"),
        ("node/node0/cpulist", "0"),
        ("node/node0/distance", "10 40 80"),
        ("node/node8/cpulist", "1"),
        ("node/node8/distance", "40 10 80"),
        ("node/node255/cpulist", ""),
        ("node/node255/distance", "80 80 10"),
    ])
    .unwrap();
    assert_eq!(machine.cpu(1).node, 1);
    assert_eq!(machine.distance(0, 1), 40);
    assert_eq!(machine.distance(0, 2), 80);
    assert!(machine.nodes()[2].is_empty());
}

#[test]
fn little_cpus_have_their_capacity() {
    let machine = read(&[
        ("cpu/possible", "0-2"),
        ("cpu/cpu0/cpu_capacity", "446"),
        ("cpu/cpu1/cpu_capacity", "1024"),
        ("cpu/cpu2/cpu_capacity", "0"),
    ]);
    let capacities: Vec<u32> = machine.unwrap().cpus().iter().map(|cpu| cpu.capacity).collect();
    assert_eq!(capacities, [446, 1024, 1]);
}

#[test]
fn a_package_of_minus_one_is_an_unknown_one() {
    let unknown = [
        ("cpu/possible", "0-1"),
        ("cpu/cpu0/topology/physical_package_id", "-1"),
        ("cpu/cpu0/topology/core_id", "0"),
        ("cpu/cpu1/topology/physical_package_id", "-1"),
        ("cpu/cpu1/topology/core_id", "0"),
    ];
    assert_eq!(read(&unknown).unwrap(), Topology::flat(2));
}

#[test]
fn threads_that_are_said_to_have_different_caches_get_the_first_ones() {
    let machine = read(&[
        ("cpu/possible", "0-1"),
        ("cpu/cpu0/topology/core_cpus_list", "0-1"),
        ("cpu/cpu1/topology/core_cpus_list", "0-1"),
        ("cpu/cpu0/cache/index3/level", "3"),
        ("cpu/cpu0/cache/index3/shared_cpu_list", "0"),
        ("cpu/cpu1/cache/index3/level", "3"),
        ("cpu/cpu1/cache/index3/shared_cpu_list", "1"),
    ]);
    assert_eq!(machine.unwrap(), Topology::regular(1, 1, 1, 2));
}

#[test]
fn an_empty_directory_is_no_sysfs() {
    let error = read(&[]).unwrap_err();
    assert!(matches!(error, MachineError::NoCpus { .. }));
    assert!(error.to_string().ends_with("mount sysfs there"));
}

#[test]
fn what_the_kernel_would_not_write_is_an_error_that_names_the_file() {
    for (name, text) in [
        ("cpu/possible", "0-"),
        ("cpu/cpu0/topology/core_id", "one"),
        ("cpu/cpu0/cache/index0/shared_cpu_list", "0-99999"),
        ("node/node0/distance", "10 300"),
    ] {
        let mut files = vec![("cpu/online", "0"), ("cpu/cpu0/topology/physical_package_id", "0")];
        files.extend([("cpu/cpu0/cache/index0/level", "1"), (name, text)]);
        let error = read(&files).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn this_machine_has_the_cpus_that_proc_shows() {
    let machine = read_sysfs(Path::new("/sys")).unwrap();
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap();
    let online = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    assert_eq!(machine.online().count() as usize, online);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn whichever_files_are_missing_the_cpus_are_there(files in subsequence(server(), 2..server().len())) {
        let lists_cpus = files.iter().any(|(name, _)| name.starts_with("cpu") && name.components().count() == 2);
        match read_sysfs(tree(files).path()) {
            Ok(machine) => prop_assert_eq!(machine.nr_cpus(), 16),
            Err(error) => prop_assert!(!lists_cpus, "{}", error),
        }
    }
}
