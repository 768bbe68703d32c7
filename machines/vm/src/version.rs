//! The version number in a kernel's release, for ordering and for known bugs; features are found by BTF, never by this.

use std::{cmp::Ordering, fmt};

/// The numbers at the beginning of a release such as `7.3.4+deb13-cloud-amd64` or `7.3-rc7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    major: u32,
    minor: u32,
    patch: u32,
    /// Release candidates come before the version that they are candidates for.
    candidate: Option<u32>,
}

impl Version {
    /// A released version.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch, candidate: None }
    }

    /// Reads the beginning of a release; the patch number may be absent.
    pub fn of_release(release: &str) -> Option<Self> {
        let end = release.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(release.len());
        let (numbers, rest) = release.split_at(end);
        let mut numbers = numbers.trim_end_matches('.').split('.').map(str::parse);
        let mut version =
            Self::new(numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next().unwrap_or(Ok(0)).ok()?);
        let candidate = rest.strip_prefix("-rc").or_else(|| rest.strip_prefix("~rc"));
        version.candidate = candidate.and_then(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            rest[..end].parse().ok()
        });
        Some(version)
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |v: &Self| (v.major, v.minor, v.patch, v.candidate.unwrap_or(u32::MAX));
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)?;
        match self.candidate {
            Some(candidate) => write!(f, "-rc{candidate}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_ordered_as_they_came_out() {
        let in_order =
            ["6.12.107+deb13", "7.2.9", "7.2.13+deb14-cloud-amd64", "7.3-rc7", "7.3~rc8-amd64", "7.3", "7.3.4"];
        let versions: Vec<Version> = in_order.map(|release| Version::of_release(release).unwrap()).into();
        assert!(versions.is_sorted());
        assert!(versions.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn what_is_no_release_has_no_version() {
        for text in ["", "cloud-amd64", "7", "7.x", "99999999999.1"] {
            assert_eq!(Version::of_release(text), None, "{text}");
        }
    }
}
