//! Writes a cpio archive in the "newc" form, which is what the kernel unpacks as its initramfs
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const PROGRAM: u32 = 0o100_755;

/// An archive in memory. Folders must be added before what is in them.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    pub fn directory(&mut self, path: &str) {
        self.entry(path, DIRECTORY, &[]);
    }

    pub fn file(&mut self, path: &str, content: &[u8]) {
        self.entry(path, FILE, content);
    }

    pub fn program(&mut self, path: &str, content: &[u8]) {
        self.entry(path, PROGRAM, content);
    }

    /// The whole archive, with its end mark.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let links = if mode == DIRECTORY { 2 } else { 1 };
        let [uid, gid, mtime, major, minor, rmajor, rminor, check] = [0; 8];
        let size = u32::try_from(content.len()).expect("a guest file is smaller than 4 GiB");
        let name_size = path.len() as u32 + 1;
        self.bytes.extend_from_slice(b"070701");
        for field in [self.entries, mode, uid, gid, links, mtime, size, major, minor, rmajor, rminor, name_size, check]
        {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_110_bytes_and_everything_starts_at_a_multiple_of_four() {
        let mut archive = Archive::default();
        archive.directory("bin");
        archive.program("bin/a", b"12345");
        let bytes = archive.finish();
        let starts: Vec<usize> = (0..bytes.len() - 5).filter(|&i| &bytes[i..i + 6] == b"070701").collect();
        // 110 + "bin\0" -> 116; 110 + "bin/a\0" = 116, + 5 -> 124; 110 + "TRAILER!!!\0" -> 124
        assert_eq!(starts, [0, 116, 240]);
        assert_eq!(bytes.len(), 364);
        assert_eq!(&bytes[116 + 110..116 + 121], b"bin/a\x0012345");
        assert_eq!(&bytes[116 + 6 + 8..116 + 6 + 16], b"000081ed");
    }
}
