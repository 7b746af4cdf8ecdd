//! Runs many worlds, each for a while; and makes a short story of one that broke a law.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::driver::Course;
use crate::fault::Fault;
use crate::laws::Broken;
use crate::seen::{Kind, Seen};
use crate::step::Step;
use crate::world::{STEP_US, Setting, World};

/// The steps of one world: enough for all its features to meet, and few enough for a readable
/// story.
pub const WORLD_STEPS: u64 = 1500;

/// A broken law, and the steps that led to it.
#[derive(Clone, Debug)]
pub struct Story {
    /// The seed of the world.
    pub seed: u64,
    /// What it was like.
    pub setting: Setting,
    /// The steps that were taken.
    pub steps: Vec<Step>,
    /// The law that was broken.
    pub broken: Broken,
    /// If no law broke: what the story was to show.
    pub wanted: Option<Kind>,
}

impl fmt::Display for Story {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, setting, steps, broken, .. } = self;
        writeln!(
            to,
            "# seed {seed}: {} servers, clocks {:?} ms",
            setting.nodes, setting.clocks_ms
        )?;
        steps.iter().try_for_each(|step| writeln!(to, "{step}"))?;
        writeln!(to, "=> {broken}")
    }
}

/// Executes one step. A panic counts as a broken law, and so does the event that a test searches
/// for.
fn step(world: &mut World, step: Step, wanted: Option<Kind>) -> Result<bool, Broken> {
    let done = catch_unwind(AssertUnwindSafe(|| world.step(step))).unwrap_or_else(|why| {
        let text = why.downcast_ref::<String>().cloned();
        let text = text.or_else(|| why.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(Broken { law: "nothing panics", what: text.unwrap_or_default() })
    });
    match wanted.filter(|kind| world.laws.seen.of(*kind) > 0) {
        Some(kind) => Err(Broken { law: "it is seen", what: format!("{kind:?}") }),
        None => done,
    }
}

/// Runs one world until this many steps did something. Returns the counted events, or the story of
/// the broken law.
///
/// # Errors
/// The story, not shortened yet.
pub fn one(seed: u64, fault: Fault, steps: u64, wanted: Option<Kind>) -> Result<Seen, Box<Story>> {
    let mut course = Course::of(seed, fault);
    let mut world = World::new(&course.setting);
    let mut told = Vec::with_capacity(steps as usize);
    let mut done = 0;
    while done < steps {
        let next = course.next(&world);
        match step(&mut world, next, wanted) {
            Ok(false) => {}
            Ok(true) => {
                told.push(next);
                done += 1;
            }
            Err(broken) => {
                told.push(next);
                let setting = course.setting.clone();
                return Err(Box::new(Story { seed, setting, steps: told, broken, wanted }));
            }
        }
    }
    Ok(world.laws.seen.clone())
}

/// Runs world after world, this many steps in all. Returns the counted events.
///
/// # Errors
/// The story of the first law that broke, shortened.
pub fn many(first_seed: u64, fault: Fault, steps: u64) -> Result<Seen, Box<Story>> {
    let mut seen = Seen::default();
    for world in 0..steps.div_ceil(WORLD_STEPS) {
        let found = one(first_seed.wrapping_add(world), fault, WORLD_STEPS, None);
        seen.add(&found.map_err(|story| Box::new(shortened(*story)))?);
    }
    Ok(seen)
}

/// A short story that shows this event, from one of this many worlds.
pub fn seen(kind: Kind, first_seed: u64, worlds: u64) -> Option<Story> {
    let mut all = (0..worlds).map(|world| first_seed.wrapping_add(world));
    let story = all.find_map(|seed| one(seed, Fault::None, WORLD_STEPS, Some(kind)).err())?;
    Some(shortened(*story))
}

/// The law that breaks in these steps, and after how many of them.
fn replay(setting: &Setting, steps: &[Step], wanted: Option<Kind>) -> Option<(Broken, usize)> {
    let mut world = World::new(setting);
    let mut all = steps.iter().zip(1..);
    all.find_map(|(next, count)| Some((step(&mut world, *next, wanted).err()?, count)))
}

/// The same broken law with fewer steps: none of the remaining steps can be left out.
pub fn shortened(story: Story) -> Story {
    let Story { seed, setting, mut steps, mut broken, wanted } = story;
    let replay = |steps: &[Step]| replay(&setting, steps, wanted);
    let mut chunk = steps.len().div_ceil(2);
    loop {
        let mut at = 0;
        let before = steps.len();
        while at < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(at..(at + chunk).min(steps.len()));
            match replay(&fewer).filter(|(other, _)| other.law == broken.law) {
                Some((other, count)) => {
                    fewer.truncate(count);
                    (steps, broken) = (fewer, other);
                }
                None => at += chunk,
            }
        }
        let is_again = |steps: &[Step]| replay(steps).filter(|b| b.0.law == broken.law);
        let is_last = chunk == 1 && steps.len() == before;
        let shorter = is_last.then(|| waited(&steps, |steps| is_again(steps).is_some()));
        match shorter.filter(|shorter| shorter.len() < before) {
            Some(shorter) => steps = shorter,
            None if is_last => break,
            None => {}
        }
        chunk = (chunk / 2).max(1);
    }
    Story { seed, setting, steps, broken, wanted }
}

/// Replaces steps that only take time by passing time, and joins adjacent times.
fn waited(steps: &[Step], is_again: impl Fn(&[Step]) -> bool) -> Vec<Step> {
    let mut steps = steps.to_vec();
    for at in 0..steps.len() {
        let before = std::mem::replace(&mut steps[at], Step::Pass(0));
        if !is_again(&steps) {
            steps[at] = before;
        }
    }
    let mut merged: Vec<Step> = Vec::new();
    for step in &steps {
        match (merged.last_mut(), step) {
            (Some(Step::Pass(before)), Step::Pass(us)) => *before += us + STEP_US as u32,
            _ => merged.push(*step),
        }
    }
    if is_again(&merged) { merged } else { steps }
}
