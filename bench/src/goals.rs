//! The goals, each a figure of the run beside its limit.

use crate::book::{Book, short};
use crate::{instructions, pair, rivals};

/// One goal.
pub struct Goal {
    pub work: &'static str,
    /// What it is measured beside, or what limits it.
    pub rival: &'static str,
    limit: Limit,
    figure: fn(&Book) -> Option<f64>,
}

#[derive(Clone, Copy)]
enum Limit {
    /// So many times the rival's at most.
    TimesAtMost(f64),
    /// So many times the rival's at least; on Valkey 8.1, whose scripts are cheaper, the second.
    TimesAtLeast(f64, f64),
    /// So much at most, of this unit.
    AtMost(f64, &'static str),
    /// It is shown, and not judged.
    None,
}

impl Goal {
    /// The limit on the server that `book` is about.
    pub fn limit(&self, book: &Book) -> String {
        match self.limit {
            Limit::TimesAtMost(limit) => format!("<= {limit:.2}x"),
            Limit::TimesAtLeast(..) => format!(">= {}x", self.least(book)),
            Limit::AtMost(limit, unit) => format!("<= {limit} {unit}"),
            Limit::None => "shown".to_owned(),
        }
    }

    /// The figure of this run, and whether the goal is reached.
    pub fn figure(&self, book: &Book) -> String {
        let Some(figure) = (self.figure)(book) else { return "not measured".to_owned() };
        let (shown, is_reached) = match self.limit {
            Limit::TimesAtMost(limit) => (format!("{figure:.2}x"), figure <= limit),
            Limit::TimesAtLeast(..) => (format!("{figure:.1}x"), figure >= self.least(book)),
            Limit::AtMost(limit, unit) => (format!("{} {unit}", short(figure)), figure <= limit),
            Limit::None => return format!("{figure:.2}x"),
        };
        format!("{shown}, {}", if is_reached { "reached" } else { "**missed**" })
    }

    fn least(&self, book: &Book) -> f64 {
        let is_valkey_8 = book.about("server").starts_with("Valkey 8");
        match self.limit {
            Limit::TimesAtLeast(_, on_valkey_8) if is_valkey_8 => on_valkey_8,
            Limit::TimesAtLeast(limit, _) => limit,
            _ => 0.0,
        }
    }
}

/// What RLOCK's pair takes, so many times a rival's.
fn instructions_beside(book: &Book, rival: &str) -> Option<f64> {
    Some(instructions_of(book, rivals::RLOCK)? / instructions_of(book, rival)?)
}

fn instructions_of(book: &Book, row: &str) -> Option<f64> {
    book.value(instructions::SECTION, row, instructions::INSTRUCTIONS)
}

/// All of them, in the order of their table.
pub const ALL: &[Goal] = &[
    Goal {
        work: "acquire + release of a free lock, instructions",
        rival: rivals::SET_DEL,
        limit: Limit::TimesAtMost(1.15),
        figure: |book| instructions_beside(book, rivals::SET_DEL),
    },
    Goal {
        work: "the same without what RM_Replicate takes",
        rival: rivals::SET_DEL,
        limit: Limit::None,
        figure: |book| {
            let replicate = instructions::REPLICATE;
            let replicate = book.value(instructions::SECTION, rivals::RLOCK, replicate)?;
            let without = instructions_of(book, rivals::RLOCK)? - replicate;
            Some(without / instructions_of(book, rivals::SET_DEL)?)
        },
    },
    Goal {
        work: "the same, fewer instructions by",
        rival: rivals::SET_SCRIPT,
        limit: Limit::TimesAtLeast(2.2, 2.2),
        figure: |book| Some(1.0 / instructions_beside(book, rivals::SET_SCRIPT)?),
    },
    Goal {
        work: "the same, fewer instructions by",
        rival: rivals::REDISSON,
        limit: Limit::TimesAtLeast(5.0, 4.0),
        figure: |book| Some(1.0 / instructions_beside(book, rivals::REDISSON)?),
    },
    Goal {
        work: "the same, fewer instructions by",
        rival: rivals::REDISSON_NOW,
        limit: Limit::TimesAtLeast(7.0, 5.5),
        figure: |book| Some(1.0 / instructions_beside(book, rivals::REDISSON_NOW)?),
    },
    Goal {
        work: "the same, instructions",
        rival: rivals::SET_DELIFEQ,
        limit: Limit::TimesAtMost(1.1),
        figure: |book| instructions_beside(book, rivals::SET_DELIFEQ),
    },
    Goal {
        work: "the same, server CPU, append-only file every second, 50 in the pipeline",
        rival: rivals::SET_DEL,
        limit: Limit::TimesAtMost(1.05),
        figure: |book| {
            book.ratio(pair::EVERY_SECOND, &pair::cpu(50), rivals::RLOCK, rivals::SET_DEL)
        },
    },
];
