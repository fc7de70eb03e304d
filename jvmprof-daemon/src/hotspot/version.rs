//! Version of a HotSpot.

use std::fmt;

/// A JVM's version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JvmVersion {
    /// 8, 17, 25: the number that people call it by; 0 if the JVM's own text can't be understood.
    pub feature: u32,
    /// As the JVM words it: "17.0.15+6-Debian-1deb12u1"; "25.504-b08" for JDK 8's HotSpot.
    pub vm_release: String,
}

impl JvmVersion {
    /// Parses the text of `Abstract_VM_Version::_s_vm_release`.
    pub fn of_release(vm_release: &str) -> Self {
        let number = vm_release.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
        let number = number.parse().unwrap_or(0);
        // JDK 8's HotSpot counts on from HotSpot 24 of JDK 7, and names builds "25.504-b08" where
        // later ones have "25.0.3+9".
        let is_8 = number == 25 && vm_release.contains("-b") && !vm_release.contains('+');
        Self { feature: if is_8 { 8 } else { number }, vm_release: vm_release.to_owned() }
    }
}

/// As `java -version` begins: `17.0.15`, `1.8.0_504`, `28-ea`.
impl fmt::Display for JvmVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.feature == 8 {
            let update = self.vm_release.split(['.', '-']).nth(1).unwrap_or_default();
            return write!(f, "1.8.0_{update}");
        }
        write!(f, "{}", self.vm_release.split('+').next().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_java_itself_prints_them() {
        for (release, feature, shown) in [
            ("25.504-b08", 8, "1.8.0_504"),
            ("11.0.13+8", 11, "11.0.13"),
            ("17.0.15+6-Debian-1deb12u1", 17, "17.0.15"),
            ("25.0.3+9-LTS", 25, "25.0.3"),
            ("28-ea+7-Debian-1", 28, "28-ea"),
            ("", 0, ""),
        ] {
            let version = JvmVersion::of_release(release);
            assert_eq!((version.feature, version.to_string().as_str()), (feature, shown), "{release}");
        }
    }
}
