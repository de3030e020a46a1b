//! Simulated engines as processes, so that they die and hang as processes do. Each keeps its port when it is started
//! again.

use std::net::SocketAddr;

use super::group::Group;
use super::payload::MODEL;

/// Engines that end when they are dropped.
#[derive(Debug)]
pub(crate) struct Engines {
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    address: SocketAddr,
    process: Option<Group>,
}

impl Engines {
    /// Starts so many. They answer by the time this returns.
    pub(crate) fn start(count: usize) -> Result<Self, String> {
        let start = |_| {
            let (process, address) = start(0)?;
            Ok(Member { address, process: Some(process) })
        };
        Ok(Self { members: (0..count).map(start).collect::<Result<_, String>>()? })
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.members.iter().map(|member| member.address).collect()
    }

    /// The name under which a gateway knows an engine.
    pub(crate) fn url(&self, engine: usize) -> String {
        self.members
            .get(engine)
            .map(|member| format!("http://{}", member.address))
            .unwrap_or_default()
    }

    /// Ends an engine where it stands, with every connection it has.
    pub(crate) fn kill(&mut self, engine: usize) {
        if let Some(member) = self.members.get_mut(engine) {
            member.process = None;
        }
    }

    /// Starts an engine that was killed, with an empty cache.
    pub(crate) fn revive(&mut self, engine: usize) -> Result<(), String> {
        if let Some(member) = self.members.get_mut(engine) {
            member.process = Some(start(member.address.port())?.0);
        }
        Ok(())
    }

    /// Stops an engine, whose connections then stay open and silent, or lets it go on.
    pub(crate) fn freeze(&self, engine: usize, frozen: bool) -> Result<(), String> {
        match self.members.get(engine).and_then(|member| member.process.as_ref()) {
            Some(process) => process.freeze(frozen),
            None => Ok(()),
        }
    }
}

fn start(port: u16) -> Result<(Group, SocketAddr), String> {
    let port = port.to_string();
    let (group, line) = Group::lab(&["engine", "--attached", "--model", MODEL, "--port", &port])?;
    let address = line.strip_prefix("ready http://").and_then(|address| address.parse().ok());
    let address = address.ok_or_else(|| format!("an engine said \"{line}\" instead of its URL"))?;
    Ok((group, address))
}
