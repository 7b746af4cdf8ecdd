//! The names of the holders that were in the way of a wait, for the slow log.

use std::rc::Rc;

use smallvec::SmallVec;

use crate::text::cut;

/// How many holders in the way of a wait are recorded at most.
pub const NAMES_MAX: usize = 100;

/// While this many wait on this server, only [`FEW_NAMES`] are recorded for a wait whose holders in
/// the way differ from those of the previous wait in line: a hundred names take 30 times the memory
/// of a ticket.
const LISTS_MAX: usize = 1000;

const FEW_NAMES: usize = 4;

/// How many of the holders in the way to record for a wait, unless the wait before it has the same
/// ones: few of them if many wait on the server.
pub(crate) const fn names_max(waits: usize) -> usize {
    if waits < LISTS_MAX { NAMES_MAX } else { FEW_NAMES }
}

/// Names of owners, each with its length and cut to [`crate::text::NAME_BYTES_MAX`] bytes. A single
/// short name, the common case, needs no allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerNames(SmallVec<[u8; 24]>);

impl OwnerNames {
    fn push(&mut self, cut: &[u8]) {
        self.0.push(u8::try_from(cut.len()).unwrap_or(u8::MAX));
        self.0.extend_from_slice(cut);
    }

    /// Returns the names of `owners`, which all waits behind the same holders share: those of the
    /// waiter `before`, or those that this server recorded `last`, if they are the same. Otherwise,
    /// records at most `most` of them, in the memory of `last` if nobody else uses it.
    pub(crate) fn shared<'o, I: Iterator<Item = &'o [u8]>>(
        before: Option<&Rc<Self>>,
        last: &mut Rc<Self>,
        most: usize,
        owners: impl Fn() -> I,
    ) -> Rc<Self> {
        let is = |names: &Self, most| names.iter().eq(owners().take(most).map(cut));
        let is_same =
            |names: &&Rc<Self>| is(names, NAMES_MAX) || most < NAMES_MAX && is(names, most);
        if let Some(names) = before.filter(is_same) {
            return names.clone();
        }
        if !is_same(&&*last) {
            let owners = || owners().take(most);
            if Rc::get_mut(last).is_none() {
                *last = Rc::default();
            }
            if let Some(names) = Rc::get_mut(last) {
                names.0.clear();
                owners().for_each(|owner| names.push(cut(owner)));
            }
        }
        last.clone()
    }

    /// One by one.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = self.0.as_slice();
        std::iter::from_fn(move || {
            let (len, behind) = rest.split_first()?;
            let (name, next) = behind.split_at_checked(usize::from(*len))?;
            rest = next;
            Some(name)
        })
    }
}
