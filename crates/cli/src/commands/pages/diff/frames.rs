//! Two tables compared frame by frame.
//!
//! Both are read at once, each by its own threads; windows of classes meet by their number, so that memory is that of a few windows.

use super::super::WINDOW;
use super::super::failure::PagesError;
use super::super::input::Input;
use coresift_census::{CensusError, ColumnId, Counts, Frames};
use coresift_kernel::PageClass;
use serde::Serialize;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// What became of frames.
#[derive(Debug, Default, Serialize)]
pub struct Compared {
    /// Frames that A has and B has not.
    pub only_a: u64,
    /// Frames that B has and A has not.
    pub only_b: u64,
    /// Frames of another class in B, most first.
    pub moves: Vec<Move>,
}

/// Frames that went from one class to another.
#[derive(Debug, Serialize)]
pub struct Move {
    /// Class in A.
    pub from: &'static str,
    /// Class in B.
    pub to: &'static str,
    /// How many.
    pub pages: u64,
}

impl Compared {
    /// Frames of another class in B.
    pub fn changed(&self) -> u64 {
        self.moves.iter().map(|one| one.pages).sum()
    }
}

/// Classes of the frames of a window, by their place in it.
struct Classes {
    number: i64,
    classes: Vec<Option<PageClass>>,
}

/// Compares A with B, and counts both by `columns`.
///
/// # Errors
/// As those of reading either; a table whose windows do not follow each other.
pub fn compare(a: &Input, b: &Input, columns: &[ColumnId]) -> Result<(Compared, Counts, Counts), PagesError> {
    std::thread::scope(|scope| {
        let (to_a, from_a) = sync_channel(2);
        let (to_b, from_b) = sync_channel(2);
        let reader_a = scope.spawn(move || read(a, columns, to_a));
        let reader_b = scope.spawn(move || read(b, columns, to_b));
        let compared = meet(&from_a, &from_b);
        // Whoever still sends has to learn that nobody listens.
        drop((from_a, from_b));
        let joined =
            |reader: std::thread::ScopedJoinHandle<'_, _>| reader.join().unwrap_or(Err(CensusError::Stopped.into()));
        let (counts_a, counts_b) = (joined(reader_a), joined(reader_b));
        Ok((compared, counts_a?, counts_b?))
    })
}

/// Sends the classes of `input` window by window, and counts.
fn read(input: &Input, columns: &[ColumnId], to: SyncSender<Classes>) -> Result<Counts, PagesError> {
    let mut wanted = vec![ColumnId::Pfn];
    wanted.extend(columns);
    let mut counts = Counts::by(columns);
    let mut current: Option<Classes> = None;
    let shape = |frames: &mut Frames| {
        let mut counts = Counts::by(columns);
        counts.count(frames);
        Ok((counts, frames.pfn.clone(), frames.class.clone()))
    };
    // The other side failed when it does not listen any more; its error is the one that is told.
    let send = |window: Option<Classes>| window.is_none_or(|window| to.send(window).is_ok());
    input.read(&wanted, shape, |(more, pfns, classes)| {
        counts.merge(more);
        for (pfn, class) in pfns.into_iter().zip(classes) {
            let (number, place) = (pfn.div_euclid(WINDOW as i64), pfn.rem_euclid(WINDOW as i64) as usize);
            if current.as_ref().is_none_or(|window| window.number != number) {
                if current.as_ref().is_some_and(|window| window.number > number) {
                    return Err(CensusError::Output(std::io::Error::other(format!(
                        "page frame {pfn} comes after later ones: only snapshots as they were written can be compared"
                    ))));
                }
                if !send(current.replace(Classes { number, classes: vec![None; WINDOW as usize] })) {
                    return Err(CensusError::Stopped);
                }
            }
            if let Some(slot) = current.as_mut().and_then(|window| window.classes.get_mut(place)) {
                *slot = Some(class);
            }
        }
        Ok(())
    })?;
    send(current);
    Ok(counts)
}

/// Compares windows of the same number.
fn meet(a: &Receiver<Classes>, b: &Receiver<Classes>) -> Compared {
    let mut compared = Compared::default();
    let mut moves: HashMap<(PageClass, PageClass), u64> = HashMap::new();
    let (mut next_a, mut next_b) = (a.recv().ok(), b.recv().ok());
    loop {
        let order = match (&next_a, &next_b) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(a), Some(b)) => a.number.cmp(&b.number),
        };
        let window_a = if order.is_le() { std::mem::replace(&mut next_a, a.recv().ok()) } else { None };
        let window_b = if order.is_ge() { std::mem::replace(&mut next_b, b.recv().ok()) } else { None };
        let classes = |window: Option<Classes>| window.map_or_else(|| vec![None; WINDOW as usize], |w| w.classes);
        for pair in classes(window_a).into_iter().zip(classes(window_b)) {
            match pair {
                (Some(from), Some(to)) if from != to => *moves.entry((from, to)).or_default() += 1,
                (Some(_), None) => compared.only_a += 1,
                (None, Some(_)) => compared.only_b += 1,
                _ => {}
            }
        }
    }
    let named = moves.into_iter().map(|((from, to), pages)| Move { from: from.name(), to: to.name(), pages });
    compared.moves = named.collect();
    compared.moves.sort_by_key(|one| (std::cmp::Reverse(one.pages), one.from, one.to));
    compared
}
