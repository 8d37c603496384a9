use super::*;
use crate::PageSize;
use proptest::prelude::*;

/// Pages of the kinds a kernel has: noise, runs, text, structures, pointers.
fn page() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        proptest::collection::vec(any::<u8>(), 1..300),
        (any::<u8>(), 1..900usize).prop_map(|(b, n)| vec![b; n]),
        ("[a-z /=_.0-9]{1,30}", 1..30usize).prop_map(|(s, n)| s.into_bytes().repeat(n)),
        (any::<u16>(), 1..80u64, 1..256u64).prop_map(|(low, n, step)| {
            (0..n).flat_map(|i| (0xffff_8880_0000_0000 | (u64::from(low) + i * step)).to_le_bytes()).collect()
        }),
    ];
    (proptest::collection::vec(piece, 1..40), prop_oneof![Just(4096usize), Just(16384), Just(65536), Just(262_144)])
        .prop_map(|(pieces, size)| pieces.concat().into_iter().cycle().take(size).collect())
}

fn size_of(page: &[u8]) -> PageSize {
    PageSize::new(page.len() as u64).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_codec_gives_back_the_page(page in page()) {
        let mut decompressor = Decompressor::new();
        for codec in Codec::ALL {
            let mut compressor = Compressor::new(codec.into(), size_of(&page)).unwrap();
            let mut out = vec![0xa5; compressor.max_output()];
            let Some(n) = compressor.compress(&page, &mut out) else { continue };
            prop_assert!(n < page.len());
            let mut back = vec![0x5a; page.len()];
            decompressor.decompress(codec, &out[..n], &mut back).unwrap();
            prop_assert!(back == page, "{codec}");
        }
    }

    #[test]
    fn damaged_data_are_an_error_or_a_page_but_never_a_panic(
        page in page(),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut decompressor = Decompressor::new();
        for codec in Codec::ALL {
            let mut compressor = Compressor::new(codec.into(), size_of(&page)).unwrap();
            let mut out = vec![0; compressor.max_output()];
            let Some(n) = compressor.compress(&page, &mut out) else { continue };
            let mut back = vec![0; page.len()];
            for (at, byte) in &edits {
                out[at.index(n)] = *byte;
            }
            let _ = decompressor.decompress(codec, &out[..n], &mut back);
            let _ = decompressor.decompress(codec, &out[..cut.index(n)], &mut back);
        }
    }

    #[test]
    fn noise_is_an_error_or_a_page_but_never_a_panic(noise in proptest::collection::vec(any::<u8>(), 0..600)) {
        let mut decompressor = Decompressor::new();
        for codec in Codec::ALL {
            let _ = decompressor.decompress(codec, &noise, &mut [0; 4096]);
        }
    }
}

#[test]
fn a_page_that_does_not_shrink_is_left_to_the_caller() {
    let mut seed = 1u32;
    let noise: Vec<u8> = (0..4096)
        .map(|_| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 24) as u8
        })
        .collect();
    for codec in Codec::ALL {
        let mut compressor = Compressor::new(codec.into(), PageSize::K4).unwrap();
        let mut out = vec![0; compressor.max_output()];
        assert_eq!(compressor.compress(&noise, &mut out), None, "{codec}");
        assert_eq!(compressor.compress(&[], &mut out), None, "{codec}");
    }
}

#[test]
fn the_output_of_a_page_does_not_depend_on_the_pages_before_it() {
    let pages: Vec<Vec<u8>> = (0..100u32)
        .map(|i| (0..4096u32).map(|j| ((j / (1 + i % 7)) as u8).wrapping_mul((i % 5) as u8)).collect())
        .collect();
    for codec in Codec::ALL {
        let mut reused = Compressor::new(codec.into(), PageSize::K4).unwrap();
        for page in pages.iter().chain(pages.iter().rev()) {
            let mut fresh = Compressor::new(codec.into(), PageSize::K4).unwrap();
            let (mut a, mut b) = (vec![0; fresh.max_output()], vec![0; fresh.max_output()]);
            let (na, nb) = (reused.compress(page, &mut a), fresh.compress(page, &mut b));
            assert_eq!(na, nb);
            assert!(a[..na.unwrap_or(0)] == b[..nb.unwrap_or(0)], "{codec}");
        }
    }
}

#[test]
fn data_of_another_length_than_the_page_are_an_error() {
    let page = vec![7; 8192];
    let mut decompressor = Decompressor::new();
    for codec in Codec::ALL {
        let mut compressor = Compressor::new(codec.into(), PageSize::new(8192).unwrap()).unwrap();
        let mut out = vec![0; compressor.max_output().max(8192)];
        let n = compressor.compress(&page, &mut out).unwrap_or(8192);
        for len in [0, 1, 4096, 8191, 8193, 16384] {
            assert!(decompressor.decompress(codec, &out[..n], &mut vec![0; len]).is_err(), "{codec} {len}");
        }
    }
}

#[test]
fn flags_name_codecs_and_unknown_bits_are_named() {
    for codec in Codec::ALL {
        assert_eq!(Codec::from_flags(codec.flag()), Ok(codec));
        assert_eq!(codec.name().parse(), Ok(codec));
        assert_eq!(codec.row().codec, codec);
    }
    assert_eq!(Codec::from_flags(0x41), Err(0x40));
    assert_eq!(Codec::from_flags(0x08), Err(0x08));
    assert_eq!(Codec::from_flags(0x03), Err(0x03));
}

#[test]
fn compression_is_written_with_its_level() {
    for (text, codec, level) in [
        ("none", Codec::None, 0),
        ("zlib", Codec::Zlib, 1),
        ("zlib:12", Codec::Zlib, 12),
        ("lzo", Codec::Lzo, 0),
        ("zstd", Codec::Zstd, 1),
        ("zstd:-5", Codec::Zstd, -5),
        ("zstd:22", Codec::Zstd, 22),
    ] {
        let parsed: Compression = text.parse().unwrap();
        assert_eq!(parsed, Compression { codec, level }, "{text}");
        assert_eq!(parsed.to_string().parse(), Ok(parsed));
    }
    for (text, part) in [
        ("", "no codec is called \"\""),
        ("gzip", "no codec is called \"gzip\""),
        ("ZLIB", "no codec"),
        ("zlib:0", "from 1 to 12"),
        ("zlib:13", "from 1 to 12"),
        ("zlib:", "\"\" is no level of zlib"),
        ("zstd:23", "from -131072 to 22"),
        ("lzo:1", "lzo has no levels"),
    ] {
        let error = text.parse::<Compression>().unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn the_levels_are_those_of_the_libraries() {
    assert_eq!(Codec::Zstd.levels(), Some(zstd_safe::min_c_level()..=zstd_safe::max_c_level()));
    for level in Codec::Zlib.levels().unwrap() {
        assert!(libdeflater::CompressionLvl::new(level).is_ok(), "{level}");
    }
    assert!(libdeflater::CompressionLvl::new(13).is_err());
}
