//! A client's scan: from one compute server to the next, and from reply to reply within each.

use super::ClientIndex;
use crate::index::{IndexError, Records, Scan};
use crate::page::Layout;
use crate::wire::{ClientRequest, ClientResponse, SCAN_REPLY_RECORDS};
use farleaf_fabric::{Fabric, ServerId};

impl<F: Fabric, L: Layout> ClientIndex<F, L> {
    pub(super) async fn scan_all(
        &self,
        scan: &Scan<L::Key>,
    ) -> Result<Records<L::Key, L::Value>, IndexError> {
        let mut found = Records::new();
        let mut rest = scan.clone();
        while found.len() < scan.limit {
            let limit = (scan.limit - found.len()).min(SCAN_REPLY_RECORDS);
            let (lower, upper) = (rest.lower.clone(), rest.upper.clone());
            let ask =
                ClientRequest::Scan { lower, upper, reverse: rest.reverse, limit: limit as u32 };
            let told = self.ask_owner(|map| map.owner_of_start(&rest), &ask, true).await?;
            let ClientResponse::Records { records, next } = told else {
                let server = ServerId::new(self.map().owner_of_start(&rest));
                return Err(IndexError::BadReply { server });
            };
            found.extend(records);
            let Some(next) = next else { break };
            if rest.reverse {
                rest.upper = next;
            } else {
                rest.lower = next;
            }
        }
        Ok(found)
    }
}
