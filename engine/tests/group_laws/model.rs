//! A naive model of holders and of groups.

use std::collections::{BTreeMap, BTreeSet};

pub const KEYS: [&str; 4] = ["a", "a:1", "b", "c"];
pub const OWNERS: [&str; 4] = ["ann", "bob", "cy", "dan"];

/// The requested mode: WRITE, or READ, perhaps with a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    Write,
    Read(Option<usize>),
}

impl Mode {
    pub fn word(self) -> String {
        match self {
            Self::Write => "WRITE".into(),
            Self::Read(None) => "READ".into(),
            Self::Read(Some(limit)) => limit.to_string(),
        }
    }

    pub fn writes(self) -> bool {
        self == Self::Write
    }
}

pub type Wants = Vec<(usize, Mode)>;

/// One wait in the line of a key.
#[derive(Clone, Debug)]
pub struct Wait {
    pub arrival: usize,
    pub owner: usize,
    pub mode: Mode,
    pub is_group: bool,
    pub has_turn: bool,
}

#[derive(Clone, Debug)]
pub struct Group {
    pub owner: usize,
    pub wants: Wants,
    pub reached: usize,
}

/// Holders and waiters, without time. A wait's arrival is the number of its connection.
#[derive(Clone, Debug, Default)]
pub struct Naive {
    pub holds: BTreeSet<(usize, usize, bool)>,
    pub lines: BTreeMap<usize, Vec<Wait>>,
    pub groups: BTreeMap<usize, Group>,
    pub moves: BTreeSet<usize>,
    /// Keys that were freed, or that a waiter left.
    pub serves: BTreeSet<usize>,
    pub told: BTreeMap<usize, bool>,
}

/// The immediate result of a request.
#[derive(Debug, PartialEq)]
pub enum Said {
    Token,
    Deadlock,
    /// It is blocked.
    Waits,
    Nil,
}

impl Naive {
    /// Who holds, and who waits where. Requests are numbered by their order, so that two histories
    /// which lead to the same situation have the same picture.
    pub fn picture(&self) -> String {
        let lines = self.lines.values().flatten();
        let ids: BTreeSet<usize> =
            self.groups.keys().copied().chain(lines.map(|wait| wait.arrival)).collect();
        let number = |id: usize| ids.iter().position(|other| *other == id);
        let groups: Vec<_> = self.groups.iter().map(|(id, group)| (number(*id), group)).collect();
        let line = |(key, line): (&usize, &Vec<Wait>)| {
            let waits = line.iter().map(|wait| (number(wait.arrival), wait.owner, wait.has_turn));
            (*key, waits.collect::<Vec<_>>())
        };
        let lines: Vec<_> = self.lines.iter().map(line).filter(|line| !line.1.is_empty()).collect();
        format!("{:?} {groups:?} {lines:?}", self.holds)
    }

    /// The first request of this owner that waits.
    pub fn wait_of(&self, owner: usize) -> Option<usize> {
        let groups = self.groups.iter().filter(|(_, group)| group.owner == owner);
        let waits = self.lines.values().flatten().filter(|wait| wait.owner == owner);
        groups.map(|(id, _)| *id).chain(waits.map(|wait| wait.arrival)).min()
    }

    pub fn has(&self, key: usize, owner: usize, write: bool) -> bool {
        self.holds.contains(&(key, owner, write))
    }

    pub fn covers(&self, key: usize, owner: usize, mode: Mode) -> bool {
        self.has(key, owner, true) || !mode.writes() && self.has(key, owner, false)
    }

    /// Whether holds and turns leave room.
    pub fn has_room(&self, key: usize, owner: usize, mode: Mode) -> bool {
        let holds = || self.holds.iter().filter(|hold| hold.0 == key);
        let turns = || self.lines.get(&key).into_iter().flatten().filter(|wait| wait.has_turn);
        match mode {
            Mode::Write => holds().count() == 0 && turns().count() == 0,
            Mode::Read(limit) => {
                let readers = holds().filter(|hold| !hold.2 && hold.1 != owner).count();
                !holds().any(|hold| hold.2 && hold.1 != owner)
                    && !turns().any(|turn| turn.mode.writes())
                    && limit.is_none_or(|limit| readers + turns().count() < limit)
            }
        }
    }

    pub fn is_open(&self, key: usize, owner: usize, mode: Mode) -> bool {
        let mut line = self.lines.get(&key).into_iter().flatten();
        self.has_room(key, owner, mode) && line.all(|wait| wait.has_turn)
    }

    /// M14: behind the turns, and behind those who arrived earlier.
    pub fn stand(&mut self, key: usize, wait: Wait) {
        let line = self.lines.entry(key).or_default();
        let place = line.iter().position(|other| !other.has_turn && other.arrival > wait.arrival);
        line.insert(place.unwrap_or(line.len()), wait);
    }

    pub fn serve(&mut self, key: usize) {
        loop {
            let line = self.lines.entry(key).or_default();
            let Some(place) = line.iter().position(|wait| !wait.has_turn) else { break };
            let wait = line[place].clone();
            if !self.has_room(key, wait.owner, wait.mode) {
                break;
            }
            let line = self.lines.get_mut(&key).unwrap();
            if wait.is_group {
                line[place].has_turn = true;
                self.reach(wait.arrival, key);
            } else {
                line.remove(place);
                self.told.insert(wait.arrival, true);
                self.begin(key, wait.owner, wait.mode);
            }
        }
        self.go_back(key);
    }

    pub fn reach(&mut self, id: usize, key: usize) {
        let group = self.groups.get_mut(&id).unwrap();
        if group.wants[group.reached..].first().map(|want| want.0) == Some(key) {
            group.reached += 1;
            self.moves.insert(id);
        }
    }

    /// The owner holds: its waits at this key are covered, or re-entries.
    pub fn begin(&mut self, key: usize, owner: usize, mode: Mode) {
        self.holds.insert((key, owner, mode.writes()));
        loop {
            let line = self.lines.entry(key).or_default().clone();
            let covered = |wait: &Wait| wait.owner == owner && self.covers(key, owner, wait.mode);
            // Groups first: they get no hold here.
            let place = line.iter().position(|wait| wait.is_group && covered(wait));
            let Some(place) = place.or_else(|| line.iter().position(covered)) else { return };
            let wait = self.lines.get_mut(&key).unwrap().remove(place);
            if wait.is_group {
                self.reach(wait.arrival, key);
            } else {
                self.holds.insert((key, owner, wait.mode.writes()));
                self.told.insert(wait.arrival, true);
            }
        }
    }

    /// M18: a group that lost this key gives up the keys behind it.
    pub fn go_back(&mut self, key: usize) {
        let line = self.lines.get(&key).cloned().unwrap_or_default();
        for wait in line.iter().filter(|wait| wait.is_group && !wait.has_turn) {
            let group = self.groups.get_mut(&wait.arrival).unwrap();
            let number = group.wants.iter().position(|want| want.0 == key).unwrap();
            if number >= group.reached {
                continue;
            }
            let left: Vec<usize> = group.wants.iter().map(|want| want.0).collect();
            let last = std::mem::replace(&mut group.reached, number);
            self.moves.remove(&wait.arrival);
            for key in left.into_iter().take(last + 1).skip(number + 1) {
                self.lines.entry(key).or_default().retain(|one| one.arrival != wait.arrival);
                self.serves.insert(key);
            }
        }
    }

    /// Ends all holds of an owner at a key, or of all owners.
    pub fn end(&mut self, key: usize, owner: Option<usize>) {
        let is_it = |hold: &(usize, usize, bool)| {
            hold.0 == key && owner.is_none_or(|owner| hold.1 == owner)
        };
        let ended: BTreeSet<usize> =
            self.holds.iter().filter(|hold| is_it(hold)).map(|hold| hold.1).collect();
        self.holds.retain(|hold| !is_it(hold));
        // The groups that the hold covered stand in line.
        for (id, group) in self.groups.clone() {
            let number = group.wants.iter().position(|want| want.0 == key);
            let is_here = self.lines.get(&key).into_iter().flatten().any(|wait| wait.arrival == id);
            if let Some(number) = number
                && number < group.reached
                && !is_here
                && ended.contains(&group.owner)
            {
                let (arrival, owner, mode) = (id, group.owner, group.wants[number].1);
                let wait = Wait { arrival, owner, mode, is_group: true, has_turn: false };
                self.stand(key, wait);
            }
        }
        self.serves.insert(key);
    }

    /// The next key of a group; `None` if it has reached all.
    fn next_of(&self, id: usize) -> Option<usize> {
        let group = &self.groups[&id];
        group.wants.get(group.reached).map(|want| want.0)
    }

    /// M32: in key order. At each key, groups that move on come first, in the order of arrival;
    /// then the line is served.
    pub fn carry_on(&mut self) {
        loop {
            if let Some(id) = self.moves.iter().copied().find(|id| self.next_of(*id).is_none()) {
                self.moves.remove(&id);
                self.commit(id);
                continue;
            }
            let comes = self.moves.iter().filter_map(|id| self.next_of(*id)).min();
            let Some(key) = comes.into_iter().chain(self.serves.first().copied()).min() else {
                return;
            };
            let all = self.moves.clone().into_iter();
            for id in all.filter(|id| self.next_of(*id) == Some(key)).collect::<Vec<_>>() {
                self.moves.remove(&id);
                self.come(id, key);
            }
            self.serves.remove(&key);
            self.serve(key);
        }
    }

    fn come(&mut self, id: usize, key: usize) {
        let Group { owner, wants, reached, .. } = self.groups[&id].clone();
        let mode = wants[reached].1;
        if self.covers(key, owner, mode) {
            return self.reach(id, key);
        }
        let wait = Wait { arrival: id, owner, mode, is_group: true, has_turn: false };
        self.stand(key, wait);
    }

    fn commit(&mut self, id: usize) {
        let Group { owner, wants, .. } = self.groups[&id].clone();
        self.told.insert(id, true);
        self.enter(id, owner, &wants);
    }

    fn enter(&mut self, id: usize, owner: usize, wants: &Wants) {
        self.groups.remove(&id);
        for (key, mode) in wants.iter().copied() {
            self.lines.entry(key).or_default().retain(|wait| wait.arrival != id);
            self.begin(key, owner, mode);
            self.serves.insert(key);
        }
    }

    /// `wants` are in key order.
    pub fn acquire(&mut self, id: usize, owner: usize, wants: &Wants, blocks: bool) -> Said {
        let waits_for_itself = |(key, mode): &(usize, Mode)| {
            mode.writes() && self.has(*key, owner, false) && !self.has(*key, owner, true)
        };
        if wants.iter().any(waits_for_itself) {
            return Said::Deadlock;
        }
        let may = |(key, mode): &(usize, Mode)| {
            self.covers(*key, owner, *mode) || self.is_open(*key, owner, *mode)
        };
        if wants.iter().all(may) {
            self.enter(id, owner, wants);
            self.carry_on();
            return Said::Token;
        }
        if !blocks {
            return Said::Nil;
        }
        self.groups.insert(id, Group { owner, wants: wants.clone(), reached: 0 });
        self.moves.insert(id);
        self.carry_on();
        Said::Waits
    }

    pub fn acquire_one(&mut self, id: usize, owner: usize, key: usize, mode: Mode) -> Said {
        if mode.writes() && self.has(key, owner, false) && !self.has(key, owner, true) {
            return Said::Deadlock;
        }
        if self.covers(key, owner, mode) || self.is_open(key, owner, mode) {
            self.begin(key, owner, mode);
            self.serve(key);
            self.carry_on();
            return Said::Token;
        }
        let wait = Wait { arrival: id, owner, mode, is_group: false, has_turn: false };
        self.stand(key, wait);
        Said::Waits
    }

    pub fn leave(&mut self, id: usize) -> Vec<usize> {
        let keys: Vec<usize> = (0..KEYS.len())
            .filter(|key| self.lines.entry(*key).or_default().iter().any(|w| w.arrival == id))
            .collect();
        for key in &keys {
            self.lines.get_mut(key).unwrap().retain(|wait| wait.arrival != id);
        }
        self.groups.remove(&id);
        self.moves.remove(&id);
        keys
    }

    pub fn cancel(&mut self, key: usize, owner: usize) {
        let ids: Vec<usize> = self.groups.keys().copied().collect();
        for id in ids {
            let group = self.groups[&id].clone();
            if group.owner == owner && group.wants.iter().any(|want| want.0 == key) {
                self.leave(id);
                self.told.insert(id, false);
                let left = group.wants.iter().take(group.reached + 1).map(|want| want.0);
                self.serves.extend(left);
            }
        }
        let line = self.lines.entry(key).or_default();
        let (gone, rest): (Vec<Wait>, Vec<Wait>) =
            line.drain(..).partition(|wait| !wait.is_group && wait.owner == owner);
        *line = rest;
        self.told.extend(gone.into_iter().map(|wait| (wait.arrival, false)));
        self.serves.insert(key);
        self.carry_on();
    }

    pub fn close(&mut self, client: usize) {
        let left = self.leave(client);
        self.serves.extend(left);
        self.carry_on();
    }
}
