//! What holds after each step, whatever happened.

use std::collections::{BTreeSet, HashMap};

use smg_decide::fleet::WorkerId;
use smg_decide::keys::scope::KeyHash;
use smg_decide::pins::records::Record;

use super::model::{Check, Name, Remembered, ensure};
use super::play::Play;
use super::shell::millis;

impl Play {
    /// The core's counts and pins are the model's.
    pub(super) fn agrees(&self) -> Check {
        let now = millis(self.clock);
        for (member, seen) in self.shell.members.iter().zip(&self.model.workers) {
            let worker = &member.worker;
            let told = (worker.in_flight(), worker.keys_in_flight(), worker.available(now));
            let wanted = (seen.in_flight, self.model.keys_in_flight(worker.id), seen.is_well());
            ensure(told == wanted, || {
                let what = "requests in flight, keys in flight, available";
                format!("{:?} has {told:?}, not {wanted:?}: {what}", worker.id)
            })?;
        }
        let table = self.shell.table_of_all();
        let records: Vec<Record> = table.records().flatten().collect();
        let (told, held) = (table.len(), records.len());
        ensure(told == held, || format!("the table counts {told} pins and holds {held}"))?;
        let fits = self.setting.max_keys.is_none_or(|most| held <= most);
        ensure(fits, || format!("{held} pins are above the bound"))?;
        records.iter().try_for_each(|record| self.is_remembered(record))?;
        let wanted = self.model.pins.len();
        ensure(held == wanted, || format!("{held} keys are pinned, not {wanted}"))
    }

    /// A record is what the document remembers: at most two workers, none twice.
    fn is_remembered(&self, record: &Record) -> Check {
        let workers: Vec<WorkerId> = record.pin.remembered().collect();
        let distinct = workers.iter().collect::<BTreeSet<_>>().len();
        ensure(workers.len() <= 2 && distinct == workers.len(), || {
            format!("{workers:?} are remembered for {:?}", record.key)
        })?;
        let name = self.names.get(&record.key).ok_or("a key is pinned that nobody sent")?;
        let told = Remembered { workers, used: record.used };
        let wanted = self.model.pins.get(name);
        ensure(wanted == Some(&told), || format!("{name:?} is pinned as {told:?}, not {wanted:?}"))
    }

    /// A full table makes room for a new key by the idlest that has nothing in flight; if all have,
    /// by the idlest of all. Nothing else goes, and the new key stays.
    pub(super) fn bound_holds(&mut self, new: &Name) -> Check {
        let model = &self.model;
        if self.setting.max_keys.is_none_or(|most| model.pins.len() <= most) {
            return Ok(());
        }
        let kept: BTreeSet<&Name> = self
            .shell
            .table_of_all()
            .records()
            .flatten()
            .filter_map(|record| self.names.get(&record.key))
            .collect();
        let others = || model.pins.iter().filter(|(name, _)| *name != new);
        let least = |busy_too: bool| {
            let may_go = others().filter(|(name, _)| busy_too || !model.busy(name));
            may_go.map(|(_, pin)| pin.used).min()
        };
        let any_idle = others().any(|(name, _)| !model.busy(name));
        let gone: Vec<(Name, u32)> = others()
            .filter(|(name, _)| !kept.contains(name))
            .map(|(name, pin)| (name.clone(), pin.used))
            .collect();
        let [(name, used)] = gone.as_slice() else {
            return Err(format!("{gone:?} went to make room for {new:?}"));
        };
        let idlest = if any_idle { !model.busy(name) } else { true };
        ensure(idlest && Some(*used) == least(!any_idle), || {
            format!("{name:?}, used at {used}, went to make room for {new:?}: not the idlest")
        })?;
        self.sums.displaced += 1;
        self.model.pins.remove(name);
        Ok(())
    }

    /// Where each key would go now if its pin decides, for each model (000: "Adding workers never
    /// moves a key").
    pub(super) fn homes(&self) -> HashMap<(KeyHash, usize), Option<WorkerId>> {
        let records = self.shell.table_of_all().records().flatten();
        let now = millis(self.clock);
        let mut homes = HashMap::new();
        for record in records {
            for (model, group) in self.shell.groups.iter().enumerate() {
                let up = |id: &WorkerId| {
                    group.workers.iter().any(|worker| worker.id == *id && worker.available(now))
                };
                homes.insert((record.key, model), record.pin.remembered().find(up));
            }
        }
        homes
    }

    /// Nothing is in flight, and nobody remembers that anything was.
    pub(super) fn is_at_rest(&self) -> Check {
        for member in &self.shell.members {
            let worker = &member.worker;
            let left =
                (worker.in_flight(), worker.keys_in_flight(), worker.load().unreported_tokens(1));
            let probes = worker.breaker().probes;
            ensure(probes == 0, || format!("{:?} is left with {probes} probes", worker.id))?;
            ensure(left == (0, 0, 0), || format!("{:?} is left with {left:?}", worker.id))?;
            for (hash, name) in &self.names {
                // Leaving at second 0 touches no pin.
                let stayed = self.shell.table_of_all().leave(*hash, worker.id, 0);
                ensure(!stayed, || format!("{name:?} is still in flight on {:?}", worker.id))?;
            }
        }
        self.agrees()
    }
}
