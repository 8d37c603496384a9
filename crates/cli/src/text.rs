//! Numbers as people read them.

/// `bytes` in the largest unit that leaves at least 1: `39.7 MiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} bytes");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 would be shown as 1024.0.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS.get(unit).copied().unwrap_or_default())
}

/// `count` with blanks between groups of three digits: `142 084`.
pub fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (i, digit) in digits.char_indices() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// `amount` by `seconds`, or nothing when no time was measured.
pub fn rate(amount: u64, seconds: f64) -> Option<u64> {
    (seconds > 0.0).then(|| (amount as f64 / seconds) as u64)
}

/// `seconds` with as many decimals as matter: `0.012 s`, `3.6 s`, `2 min 05 s`.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{s:.3} s"),
        s if s < 120.0 => format!("{s:.1} s"),
        s => format!("{} min {:02} s", s as u64 / 60, s as u64 % 60),
    }
}

/// `part` of `whole` in percent with one decimal; 0 of nothing.
pub fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

/// A time in seconds since 1970 as `2026-11-30 17:30:52`, in the proleptic Gregorian calendar.
pub fn utc(seconds: i64) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days counted from 0000-03-01, so that a leap day is the last of its year; 400 years have 146097 days.
    let days = days.saturating_add(719_468);
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let (month, after_new_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + era.saturating_mul(400) + after_new_year;
    format!("{year:04}-{month:02}-{day_of_month:02} {:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        for (n, text) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1024, "1.0 KiB"),
            (1_048_524, "1023.9 KiB"),
            (1_048_575, "1.0 MiB"),
            (41_608_977, "39.7 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(n), text, "{n}");
        }
        for (n, text) in [(0, "0"), (999, "999"), (1000, "1 000"), (142_084, "142 084"), (1_234_567, "1 234 567")] {
            assert_eq!(count(n), text);
        }
        for (s, text) in [(0.012, "0.012 s"), (3.61, "3.6 s"), (125.0, "2 min 05 s")] {
            assert_eq!(seconds(s), text);
        }
        for (s, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_796_059_852, "2026-11-30 17:30:52"),
            (4_107_542_399, "2100-02-28 23:59:59"),
            (4_107_542_400, "2100-03-01 00:00:00"),
            (-1, "1969-12-31 23:59:59"),
        ] {
            assert_eq!(utc(s), text, "{s}");
        }
        assert!(!utc(i64::MAX).is_empty() && !utc(i64::MIN).is_empty());
        assert_eq!(rate(100, 0.0), None);
        assert_eq!(rate(100, 2.0), Some(50));
    }
}
