//! Kernel releases as numbers.

use std::fmt;

/// major.minor.patch of a kernel release. Used only where no evidence exists for what it decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion(pub u32, pub u32, pub u32);

impl KernelVersion {
    /// The oldest and newest releases whose page layout is known to this program.
    pub const KNOWN: (Self, Self) = (Self(2, 6, 15), Self(7, 2, u32::MAX));

    /// Reads the numbers at the beginning of a release such as `6.12.111+deb12-cloud-amd64` or `7.2-rc1`.
    #[must_use]
    pub fn parse(release: &str) -> Option<Self> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().ok());
        let major = numbers.next()??;
        let minor = numbers.next()??;
        Some(Self(major, minor, numbers.next().flatten().unwrap_or(0)))
    }

    /// Whether the release lies in [`Self::KNOWN`].
    #[must_use]
    pub fn is_known(self) -> bool {
        (Self::KNOWN.0..=Self::KNOWN.1).contains(&self)
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_distributions_are_read() {
        assert_eq!(KernelVersion::parse("6.12.111+deb12-cloud-amd64"), Some(KernelVersion(6, 12, 111)));
        assert_eq!(KernelVersion::parse("7.2-rc1"), Some(KernelVersion(7, 2, 0)));
        assert_eq!(KernelVersion::parse("2.6.32-754.el6.x86_64"), Some(KernelVersion(2, 6, 32)));
        assert_eq!(KernelVersion::parse("linux"), None);
        assert!(KernelVersion(7, 2, 9).is_known() && !KernelVersion(8, 0, 0).is_known());
    }
}
