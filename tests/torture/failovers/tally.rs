//! Counts and prints the results.

use std::fmt;

use super::claims::{Claim, KINDS, Kind, SORTS, Sort};

/// How many violations to print.
const SAID_MAX: usize = 12;

#[derive(Default)]
pub struct Tally {
    name: String,
    pub failovers: u32,
    pub took_ms: f64,
    /// How many replies reported a hold, including holds that were released later.
    pub told: u64,
    pub no_acks: u64,
    pub no_replicas: u64,
    /// For each sort and kind: what was claimed when the server took over, and what of it was lost.
    claimed: Vec<(Sort, Kind)>,
    lost: Vec<(Sort, Kind)>,
    /// What had ended by the clock of the server that took over, and not for its owner.
    cut_short: Vec<Sort>,
    pub wrong: Vec<String>,
}

impl Tally {
    pub fn of(name: &str) -> Tally {
        Tally { name: name.to_owned(), ..Tally::default() }
    }

    pub fn count(&mut self, claim: &Claim) {
        self.claimed.push((claim.sort, claim.kind));
    }

    pub fn lose(&mut self, claim: &Claim) {
        self.lost.push((claim.sort, claim.kind));
    }

    pub fn cut_short(&mut self, claim: &Claim) {
        self.cut_short.push(claim.sort);
    }

    /// Prints violations at once: a long run does not end soon.
    pub fn complain(&mut self, wrong: impl Iterator<Item = String>) {
        for text in wrong {
            if self.wrong.len() < SAID_MAX {
                println!("  WRONG: {text}");
            }
            self.wrong.push(text);
        }
    }

    pub fn add(&mut self, other: Tally) {
        self.failovers += other.failovers;
        self.took_ms += other.took_ms;
        self.told += other.told;
        self.no_acks += other.no_acks;
        self.no_replicas += other.no_replicas;
        self.claimed.extend(other.claimed);
        self.lost.extend(other.lost);
        self.cut_short.extend(other.cut_short);
        self.wrong.extend(other.wrong);
    }

    pub fn claimed(&self, sort: Sort) -> usize {
        self.claimed.iter().filter(|(of, _)| *of == sort).count()
    }

    pub fn lost(&self, sort: Sort) -> usize {
        self.lost.iter().filter(|(of, _)| *of == sort).count()
    }

    /// The controls that have lost nothing: nothing is shown by this.
    pub fn idle_controls(&self) -> Vec<Sort> {
        let is_idle = |sort: &Sort| sort.is_control() && self.lost(*sort) == 0;
        self.sorts().into_iter().filter(is_idle).collect()
    }

    /// The sorts that claimed anything.
    fn sorts(&self) -> Vec<Sort> {
        SORTS.into_iter().filter(|sort| self.claimed(*sort) > 0).collect()
    }

    /// Lost claims and all claims, for each kind of reply.
    pub fn kinds(&self) -> String {
        let line = |sort: &Sort| {
            let number =
                |all: &[(Sort, Kind)], kind| all.iter().filter(|it| **it == (*sort, kind)).count();
            let kinds = KINDS.iter().map(|kind| {
                format!("{kind:?} {}/{}", number(&self.lost, *kind), number(&self.claimed, *kind))
            });
            format!("  {sort:?}: {}", kinds.collect::<Vec<_>>().join(", "))
        };
        self.sorts().iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { name, failovers, no_acks, no_replicas, wrong, .. } = self;
        let each_s = self.took_ms / 1000.0 / f64::from((*failovers).max(1));
        write!(f, "{name:<10} {failovers:>4} failovers of {each_s:.1} s")?;
        for sort in self.sorts() {
            write!(f, "; {sort:?} {} lost {}", self.claimed(sort), self.lost(sort))?;
            let cut_short = self.cut_short.iter().filter(|of| **of == sort).count();
            if cut_short > 0 {
                write!(f, " cut short {cut_short}")?;
            }
        }
        write!(f, "; {no_acks} NOACKS, {no_replicas} NOREPLICAS; {} violations", wrong.len())
    }
}
