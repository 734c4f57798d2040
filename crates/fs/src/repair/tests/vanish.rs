//! A drive that is gone for a moment while a repair is planned: nothing is given up that it has.

use super::*;
use furrow_emu::When;

/// The moment comes at each command of a plan once. The plan is the one for the damage alone, or
/// there is none.
#[test]
fn what_a_drive_did_not_return_for_a_moment_is_not_given_up() {
    let rt = Rt::new(Config::simulated(1));
    let on = rt.clone();
    rt.block_on(async move {
        let (drive, _) = damaged(&on, content_of_small).await.unwrap();
        let options = RepairOptions { zero_bad_data: true, ..RepairOptions::default() };
        let whole = plan(&on, &drive, &options).await.unwrap();
        assert!(whole.is_useful() && whole.loses());
        let (mut refused, mut at) = (0, 1);
        loop {
            let away = Fault::new(FaultKind::Disappear { commands: Some(2) });
            drive.inject(away.when(When::Nth(at)).times(1)).unwrap();
            let planned = plan(&on, &drive, &options).await;
            let struck = drive.faults().is_empty();
            drive.clear_faults(None).unwrap();
            match planned {
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Io, "{at}: {error}");
                    refused += 1;
                }
                Ok(planned) => assert_eq!(planned.actions, whole.actions, "{at}"),
            }
            if !struck {
                break;
            }
            at += 1 + at / 16;
        }
        assert!(refused > 15, "{refused} of the plans were refused");
    });
}
